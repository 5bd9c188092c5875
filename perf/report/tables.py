"""What the tables of reports are made with."""
import statistics
import sys


def select(rows, **keys):
    return [row for row in rows if all(row.get(key) == value for key, value in keys.items())]


def median(rows, key):
    return statistics.median(row[key] for row in rows)


def number(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def size(count):
    for unit in ("", "K", "M"):
        if count < 1024 or count % 1024:
            break
        count //= 1024
    else:
        unit = "G"
    return f"{count}{unit}"


def table(heads, lines):
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" * len(heads)
    for line in lines:
        yield "| " + " | ".join(line) + " |"
    yield ""


def put_into(page, text, marks):
    before, begin, rest = page.read_text().partition(marks[0])
    old, end, after = rest.partition(marks[1])
    if not begin or not end:
        sys.exit(f"{page} lacks the lines that the tables go between:\n{marks[0]}\n{marks[1]}")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}")
