"""What ``inspect`` shows, in a reader's words."""

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from dflash_cache.runs.shown import shown_bytes

from .render import figures_table, left_out, linked, warnings_tables
from .reports import Report

LEARNED = "bold green"


def inspect_tables(report: Report) -> list[Table]:
    """Of a cache's report or a dataset's."""
    tables = _dataset_tables(report) if "dataset" in report else [_cache_table(report)]
    tables += [_lengths_table(report["lengths"])] if report["lengths"] else []
    tables += _row_tables(report["row"]) if "row" in report else []
    return tables + ([_quality_table(report["quality"])] if "quality" in report else [])


def _dataset_tables(report: Report) -> list[Table]:
    rows = {
        "dataset": escape(report["dataset"]),
        "rows": f"{report['rows']:,}",
        "sequences": f"{report['sequences']:,}",
        "tokens": f"{report['tokens']:,}",
        "tokens to learn from": f"{report['mask_share']:.1%}",
        "rows left out": left_out(report),
    }
    return [figures_table("Dataset", rows), *warnings_tables(report["warnings"])]


def _cache_table(report: Report) -> Table:
    identity, writer = report["identity"], report["writer"]
    dropped = ", ".join(f"{rows:,} {reason}" for reason, rows in report["dropped"].items())
    stored, raw = report["bytes_stored"], report["bytes_raw"]
    rows = {
        "target": escape(identity["target"]),
        "dataset": escape(", ".join(part["dataset"] for part in identity["parts"])),
        "layers": ", ".join(map(str, identity["target_layer_ids"]))
        + f" of {identity['num_target_layers']}, hidden size {identity['hidden_size']:,}",
        "segments": f"{report['segments']:,} of {report['segments_planned']:,}",
        "sequences": f"{report['sequences']:,}",
        "tokens": f"{report['tokens']:,}",
        "rows left out": dropped or "none",
        "dtype and codec": f"{identity['dtype']}, {report['codec']}",
        "hidden states": shown_bytes(raw),
        "on disk": shown_bytes(stored) + (f" ({stored / raw:.1%})" if raw else ""),
        **linked(report),
        "in use by": "nobody that writes"
        if writer is None
        else escape(", ".join(f"{name} {value}" for name, value in writer.items()) or "yes"),
    }
    return figures_table("Cache", rows)


def _lengths_table(lengths: Report) -> Table:
    most = max(part["rows"] for part in lengths["histogram"])
    title = "Lengths: {shortest:,} to {longest:,} tokens, median {median:,}".format(**lengths)
    table = Table(title=title, title_justify="left", show_header=False)
    for part in lengths["histogram"]:
        bar = "#" * round(30 * part["rows"] / most)
        rows = "1 row" if part["rows"] == 1 else f"{part['rows']:,} rows"
        table.add_row(f"{part['from']:,} to {part['to']:,}", rows, bar)
    return table


def _row_tables(row: Report) -> list[Table]:
    shown: dict[str, str | Text] = {"segment": str(row["segment"])} if "segment" in row else {}
    shown |= {
        "tokens": f"{len(row['input_ids']):,}, {row['loss_mask'].count(1):,} to learn from",
        "ids": " ".join(map(str, row["input_ids"])),
        "mask": "".join(map(str, row["loss_mask"])),
        "text": "name the target with --target to see it",
    }
    if row.get("left_out"):
        shown["text"] = escape(f"left out: {row['left_out']}")
    elif row["text"] is not None:
        shown["text"] = Text.assemble(
            *(
                (f"⟦{run['text']}⟧", LEARNED) if run["learned"] else (run["text"], "dim")
                for run in row["text"]
            )
        )
    tables = [figures_table(f"Row {row['row_id']}; what is learned is in ⟦ ⟧", shown)]
    return tables + ([_norms_table(row["layers"])] if "layers" in row else [])


def _norms_table(layers: list[Report]) -> Table:
    norms = Table(title="Norms of its states", title_justify="left")
    for heading in ("layer", "smallest", "mean", "largest"):
        norms.add_column(heading, justify="right")
    for layer in layers:
        figures = (layer["norm_smallest"], layer["norm_mean"], layer["norm_largest"])
        norms.add_row(str(layer["layer"]), *(f"{figure:.4g}" for figure in figures))
    return norms


def _quality_table(quality: Report) -> Table:
    title = f"Against exact states, {quality['rows']:,} rows, {quality['tokens']:,} tokens"
    table = Table(title=title, title_justify="left")
    for heading in ("layer", "relative error", "cosine", "saturated"):
        table.add_column(heading, justify="right")
    for layer in quality["layers"]:
        table.add_row(
            str(layer["layer"]),
            f"{layer['relative_error']:.5f}",
            f"{layer['cosine']:.6f}",
            f"{layer['saturated']:.3%}",
        )
    return table
