"""What lies where in a run's folder, and which file marks a cache."""

CACHE_SPEC = "spec.json"  # in a cache's folder: what it is made of

RUN = "run.json"  # what the run was made from
SETTINGS = "train.json"  # of the last start
METRICS = "metrics.jsonl"
OUTCOME = "report.json"  # what the last starts came to
EXPORT = "export"  # the drafter
TRAINING = "training.json"  # in a drafter's folder: how it was made
HELD_OUT = ("block_acceptance_length", "slot_accuracy")  # its figures of the held-out rows
EVALUATION = "evaluation.json"
