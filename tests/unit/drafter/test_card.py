"""The model card."""

import json
import re
import shlex

from dflash_cache.drafter.card import model_card
from tests.support.drafters import KINDS, drafter_config

TRAINING = {
    "cache": {
        "target": "org/target",
        "revision": "abc",
        "target_weights_hash": "11aa",
        "tokenizer_hash": "22bb",
        "parts": [{"dataset": "tokens", "dataset_fingerprint": "33cc", "max_seq_len": 512}],
        "dtype": "bfloat16",
        "codec": "lz4",
    },
    "num_rows": 100,
    "held_out_rows": [1, 2, 3],
    "steps": 7,
    "settings": {"lr": 6e-4, "schedule": "cosine", "gamma": None, "epochs": 6, "steps": 7},
    "block_acceptance_length": 1.5,
    "slot_accuracy": [0.5, 0.25],
    "evaluation": {"acceptance_length": 1.4, "lossless": 1.0, "held_out": True},
}


def card(config=None, training=TRAINING, layout="transformers"):
    config = config or drafter_config()
    return model_card(config, training, layout=layout, dtype="bfloat16", name="export")


def commands(text):
    return [shlex.split(block) for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL)]


def test_a_card_says_what_the_drafter_was_made_from():
    lines = card().splitlines()
    for line in (
        "base_model: org/target",
        "| name | org/target |",
        "| hash of its weights | 11aa |",
        "| its fingerprint | 33cc |",
        "| rows extracted | 100 |",
        "| of them held out | 3 |",
        "| target layers | 0, 1, 2 |",
        "| `lr` | 0.0006 |",
        "| block acceptance length, held-out rows, teacher-forced | 1.5 |",
        "| accuracy of slots 1, 2, ..., held-out rows | 0.5, 0.25 |",
        "| acceptance length, by decoding | 1.4 |",
    ):
        assert line in lines


def test_epochs_are_no_setting_where_steps_are_given():
    assert card().count("steps") == 1
    assert "epochs" not in card()
    by_epochs = TRAINING | {"settings": {"epochs": 6, "steps": None}}
    assert "| `epochs` | 6 |" in card(training=by_epochs)


def test_the_path_of_a_local_target_is_said_to_be_one_machines():
    local = TRAINING | {"cache": TRAINING["cache"] | {"target": "/models/mine"}}
    assert "# DFlash drafter for mine\n" in card(training=local)
    assert "The target's path is that of the machine" in card(training=local)
    assert "The target's path" not in card()


def test_what_is_not_known_is_left_out():
    text = card(training={})
    assert "None" not in text
    assert "## Data" not in text
    assert "The target's path" not in text
    assert "base_model" not in text
    assert "base_model" not in card(training={"cache": {"target": "/models/org"}})


def test_the_commands_hold_this_drafters_block():
    vllm, sglang = commands(card(drafter_config(block_size=8)))
    assert vllm[:3] == ["vllm", "serve", "org/target"]
    assert json.loads(vllm[-1]) == {
        "method": "dflash", "model": "./export", "num_speculative_tokens": 7,
    }  # fmt: skip
    assert sglang[:3] == ["python", "-m", "sglang.launch_server"]
    assert sglang[-2:] == ["--speculative-num-draft-tokens", "8"]
    assert "were not" in card()


def test_a_layout_that_cannot_say_what_a_drafter_is_warns():
    assert "one causality" not in card(layout="speculators")
    assert "one causality" in card(drafter_config(KINDS["mixed"]), layout="speculators")
    assert "one causality" not in card(drafter_config(KINDS["mixed"]))
    assert len(commands(card(layout="speculators"))) == 1
