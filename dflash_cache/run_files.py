"""What lies where in a run's folder."""

RUN = "run.json"  # what the run was made from
SETTINGS = "train.json"  # of the last start
METRICS = "metrics.jsonl"
OUTCOME = "report.json"  # what the last starts came to
EXPORT = "export"  # the drafter
TRAINING = "training.json"  # in a drafter's folder: how it was made
EVALUATION = "evaluation.json"
