"""What the documentation shows works.

Convention: every ```python block of README.md and docs/ runs, in order, with one namespace a page.
The working directory has nothing but a small finished cache, ``dflash-demo/cache``.
Keys in ```toml blocks are settings. Links to files of the repository lead somewhere. Commands:
``test_commands.py``.
"""

import re
import shutil
import tomllib
from pathlib import Path

import pytest

from dflash_cache import demo
from dflash_cache.config import (
    BothConfig,
    EvaluateConfig,
    ExportConfig,
    ExtractConfig,
    TokenizeConfig,
    VerifyConfig,
)
from dflash_cache.runs.extract import extract
from dflash_cache.settings import options_of
from tests.support.pages import PAGES, ROOT, blocks, page_name, pages_with

LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
CONFIGS = (BothConfig, EvaluateConfig, ExportConfig, VerifyConfig, TokenizeConfig)
SETTINGS = {item.name for each in CONFIGS for item, _ in options_of(each)}


@pytest.fixture(scope="session")
def cache_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of 24 rows of the demo, in bfloat16, as a cache for a real target is."""
    path = tmp_path_factory.mktemp("docs") / "cache"
    extract(
        ExtractConfig(
            data=demo.DATA,
            target=str(demo.TARGET),
            cache=path,
            limit=24,
            segment_tokens=2048,
            dtype="bfloat16",
            devices=("cpu",),
        )
    )
    return path


@pytest.mark.parametrize("page", pages_with("python"), ids=page_name)
def test_python_blocks_run(
    page: Path, cache_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(cache_path, "dflash-demo/cache")
    namespace = {"__name__": "snippet"}
    for first_line, block in blocks(page, "python"):
        padded = "\n" * (first_line - 1) + block  # a trace names the page's own lines
        exec(compile(padded, str(page), "exec"), namespace)


@pytest.mark.parametrize("page", pages_with("toml"), ids=page_name)
def test_settings_in_toml_blocks_exist(page: Path) -> None:
    for first_line, block in blocks(page, "toml"):
        names = {name.replace("-", "_") for name in tomllib.loads(block)}
        assert names <= SETTINGS, f"{page_name(page)}:{first_line}: {names - SETTINGS}"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_lead_to_files(page: Path) -> None:
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []


def test_every_page_is_reached_from_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    links = LINK.findall(index.read_text(encoding="utf-8"))
    reached = {(index.parent / target).resolve() for target in links}
    pages = {page.resolve() for page in PAGES if page not in (index, ROOT / "README.md")}
    assert pages <= reached
