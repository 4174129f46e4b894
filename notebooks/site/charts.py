"""Charts of measured results, as data in the language of Vega-Lite, which aggregates the runs itself."""

# The colours of the calculators, as variables of site.css, so that a chart follows the theme.
COLOURS = [f"var(--chart-{number})" for number in range(1, 10)]
INK, SOFT, GRID = "var(--chart-ink)", "var(--chart-soft)", "var(--chart-grid)"
CONFIG = {
    "background": None,
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "range": {"category": COLOURS},
    "axis": {"labelColor": SOFT, "titleColor": INK, "gridColor": GRID, "domainColor": SOFT, "tickColor": SOFT,
             "labelFontSize": 12, "titleFontSize": 12.5, "titleFontWeight": "normal", "labelLimit": 170,
             "labelOverlap": "greedy", "labelSeparation": 6, "labelFlush": False},
    "legend": {"labelColor": INK, "titleColor": INK, "labelFontSize": 12, "orient": "bottom",
               "labelLimit": 220, "symbolOpacity": 1},
}  # fmt: skip


def spec(claim: dict, rows: list[dict]) -> dict:
    """Return the chart of a claim in Vega-Lite's language, without its data.

    Args:
        claim: an entry of claims.yaml.
        rows: the rows of its results file.
    """
    named = "by" in claim
    across, value = (claim["by"], claim["value"]) if named else (claim["x"], claim["y"])
    groups = [across, *([claim["colour"]] if "colour" in claim else [])]
    return {
        "width": "container",
        "height": 20 + 34 * len({row[across] for row in rows}) if named else 270,
        "transform": [*_chosen(claim), *_summary(claim, groups, value)],
        "encoding": _shared(claim, across),
        "layer": _layers(claim, named),
    }


def _chosen(claim):
    """Return the transforms that choose the rows to draw."""
    steps = [*claim.get("transform", [])]
    if "where" in claim:
        steps.append({"filter": claim["where"]})
    if "last" in claim:
        largest = {"op": "max", "field": claim["last"], "as": "end"}
        steps += [
            {"joinaggregate": [largest]},
            {"filter": f"datum.{claim['last']} == datum.end"},
        ]
    return steps


def _summary(claim, groups, value):
    """Return the transforms that give the middle and the spread of each group, and a text about it."""
    times = claim.get("times")
    wanted = ["median", "min", "max"] if times else ["mean", "stdev"]
    columns = [{"op": op, "field": value, "as": op} for op in wanted]
    columns.append({"op": "valid", "field": value, "as": "n"})
    if "expected" in claim:
        columns.append({"op": "median", "field": claim["expected"], "as": "expected"})
    if times:
        ends = {"low": "datum.min", "high": "datum.max"}
        words = (
            f"'median of ' + datum.n + ', range ' + {_number('min')} + ' to ' + {_number('max')}"
        )
    else:
        spread = "(datum.stdev || 0)"
        # On a logarithmic axis the line ends at the smallest run where the deviation would reach zero.
        columns.append({"op": "min", "field": value, "as": "least"})
        low = f"datum.mean - {spread}"
        low = f"max({low}, datum.least)" if _value_is_logarithmic(claim) else low
        ends = {"low": low, "high": f"datum.mean + {spread}"}
        words = "'mean of ' + datum.n + ', standard deviation ' + format(datum.stdev || 0, '.2~r')"
    if "expected" in claim:
        words += f" + ', predicted ' + {_number('expected')}"
    name = " + ', ' + ".join(f"'{each.replace('_', ' ')} ' + datum['{each}']" for each in groups)
    texts = {
        **ends,
        "middle": f"datum.{wanted[0]}",
        "said": f"{name} + ': ' + {_number(wanted[0])} + ' (' + {words} + ')'",
    }
    calculated = [{"calculate": formula, "as": field} for field, formula in texts.items()]
    return [{"aggregate": columns, "groupby": groups}, *calculated]


def _value_is_logarithmic(claim):
    return ("x" if "by" in claim else "y") in claim.get("log", "")


def _number(field):
    """Return the expression of a number with three significant digits."""
    return f"format(datum.{field}, '.3~r')"


def _axis(title, log):
    scale = {"type": "log", "nice": False} if log else {"zero": False, "nice": True}
    return {"type": "quantitative", "title": title, "scale": scale}


def _shared(claim, across):
    """Return the encoding that all marks share: the names or the horizontal axis, and the colour."""
    encoding = {}
    if "by" in claim:
        encoding["y"] = {
            "field": across,
            "type": "nominal",
            "title": across.replace("_", " "),
            "sort": claim.get("order"),
        }
    else:
        log = "x" in claim.get("log", "")
        encoding["x"] = {"field": across, **_axis(claim["x_title"], log)}
    if "colour" in claim:
        title = claim["colour"].replace("_", " ")
        encoding["color"] = {"field": claim["colour"], "type": "nominal", "title": title}
        if "by" in claim:
            encoding["yOffset"] = {"field": claim["colour"], "type": "nominal"}
    return encoding


def _layers(claim, named):
    """Return the marks of a chart: spread, line, prediction, points and a horizontal rule."""
    value = "x" if named else "y"
    axis = _axis(claim["y_title"], _value_is_logarithmic(claim))
    colour = {} if "colour" in claim else {"color": {"value": COLOURS[0]}}

    def layer(mark, field, **more):
        return {"mark": mark, "encoding": {value: {"field": field, **axis}, **colour, **more}}

    spread = {"type": "rule", "strokeWidth": 2, "opacity": 0.55, "aria": False}
    layers = [layer(spread, "low", **{f"{value}2": {"field": "high"}})]
    if not named:
        layers.append(layer({"type": "line", "strokeWidth": 1.8, "aria": False}, "middle"))
    if "expected" in claim:
        mark = {
            "type": "point",
            "shape": "diamond",
            "size": 150,
            "strokeWidth": 1.5,
            "filled": False,
            "aria": False,
        }
        layers.append(layer(mark, "expected", color={"value": INK}))
    said = {"tooltip": {"field": "said"}, "description": {"field": "said"}}
    layers.append(
        layer({"type": "point", "filled": True, "size": 75, "opacity": 1}, "middle", **said)
    )
    if "rule" in claim:
        rule = {
            "type": "rule",
            "strokeDash": [6, 4],
            "strokeWidth": 1.5,
            "color": INK,
            "aria": False,
        }
        layers.append(
            {
                "data": {"values": [{}]},
                "mark": rule,
                "encoding": {"y": {"datum": claim["rule"]}, "x": None, "color": {"value": INK}},
            }
        )
    return layers
