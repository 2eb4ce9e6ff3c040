"""The settings of each command: frozen dataclasses, from which the flags are derived."""

from .both import BothConfig
from .evaluation import EvaluateConfig
from .extraction import ExtractConfig, PlanConfig
from .pages import InitConfig, ReportConfig
from .regeneration import RegenerateConfig
from .tokenization import TokenizeConfig
from .training import MOST_DRAFT_LAYERS, ExportConfig, TrainConfig
from .upkeep import InspectConfig, MergeConfig, VerifyConfig

Config = (
    BothConfig
    | EvaluateConfig
    | ExportConfig
    | ExtractConfig
    | InitConfig
    | InspectConfig
    | MergeConfig
    | PlanConfig
    | RegenerateConfig
    | ReportConfig
    | TokenizeConfig
    | TrainConfig
    | VerifyConfig
)

__all__ = [
    "MOST_DRAFT_LAYERS",
    "BothConfig",
    "Config",
    "EvaluateConfig",
    "ExportConfig",
    "ExtractConfig",
    "InitConfig",
    "InspectConfig",
    "MergeConfig",
    "PlanConfig",
    "RegenerateConfig",
    "ReportConfig",
    "TokenizeConfig",
    "TrainConfig",
    "VerifyConfig",
]
