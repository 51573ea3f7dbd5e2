"""SQL beside the model: the same question to both."""

from __future__ import annotations

from tests.crash.checker import require


def check_query(world, model, random):
    """Ask one random question of SQL and of the model."""
    world.sync()
    if model.expires:
        # The log may hold on to records whose files retention took.
        model.files_start = world.files_start(model)
    kinds = [_all, _all, _counts, _filtered, _offsets, _log, _as_of, _as_of_time]
    if model.keyed:
        kinds += [_point, _point, _grouped]
    random.choice(kinds)(world, model, random)


def _rows(world, sql, params=None, **options):
    world.note(f"-- sql {sql} {params or ''} {options or ''}")
    return world.engine.query(sql, params, **options).rows()


def _table(model):
    return f'"default"."{model.short}"'


def _wanted(model, end=None, start=0):
    """What `SELECT *` gives: offset, time and columns of each row, in order of offsets."""
    rows = model.rows_at(model.exposed if end is None else end)
    return [
        (offset, model.times[offset], *row.values())
        for offset, row in sorted(rows.items())
        if offset >= max(start, model.first)
    ]


def _same(have, want, sql):
    require(have == want, "another result", sql=sql, have=have, want=want)


def _all(world, model, random):
    sql = f"SELECT * FROM {_table(model)}"
    _same(sorted(_rows(world, sql), key=lambda row: row[0]), _wanted(model), sql)


def _offsets(world, model, random):
    low = random.randint(0, model.exposed + 1)
    sql = f"SELECT * FROM {_table(model)} WHERE _offset >= {low} ORDER BY _offset"
    _same(_rows(world, sql), _wanted(model, start=low), sql)


def _as_of(world, model, random):
    end = random.randint(model.first, model.exposed)
    sql = f"SELECT * FROM {_table(model)} ORDER BY _offset"
    _same(_rows(world, sql, as_of_offset=end), _wanted(model, end), f"{sql} as of {end}")


def _as_of_time(world, model, random):
    # Of times before the first record that is held nothing is known.
    times = {at: time for at, time in model.times.items() if at >= model.first}
    if not times:
        return
    time = random.choice(list(times.values()))
    end = min((at for at, each in times.items() if each > time), default=model.exposed)
    sql = f"SELECT * FROM {_table(model)} ORDER BY _offset"
    _same(_rows(world, sql, as_of_time=time), _wanted(model, end), f"{sql} as of {time}")


def _log(world, model, random):
    sql = f'SELECT * FROM "default"."{model.short}$log" ORDER BY _offset'
    have = _rows(world, sql)
    want = []
    for offset in sorted(at for at in model.log if at >= model.first):
        change = model.log[offset]
        row = model.logged_row(change)
        want.append((offset, model.times[offset], change.op, *row.values()))
    _same(have, want, sql)


def _number(model, random):
    numbers = [column for column in model.columns if column.type != "string"]
    return random.choice(numbers) if numbers else None


def _values(model, column):
    rows = model.rows_at(model.exposed)
    return [row[column.name] for at, row in rows.items() if at >= model.first]


def _counts(world, model, random):
    column = _number(model, random) or model.columns[0]
    values = _values(model, column)
    known = [value for value in values if value is not None]
    sql = (
        f'SELECT count(*), count("{column.name}"), min("{column.name}"), max("{column.name}"), '
        f"max(_offset) FROM {_table(model)}"
    )
    rows = _wanted(model)
    want = (
        len(values),
        len(known),
        min(known, default=None),
        max(known, default=None),
        max((row[0] for row in rows), default=None),
    )
    if column.type != "string":
        _same(_rows(world, sql), [want], sql)
        total = f'SELECT sum("{column.name}") FROM {_table(model)}'
        _same(_rows(world, total), [(sum(known) if known else None,)], total)
        return
    sql = f'SELECT count(*), count("{column.name}") FROM {_table(model)}'
    _same(_rows(world, sql), [want[:2]], sql)


def _filtered(world, model, random):
    column = _number(model, random)
    if column is None:
        return
    bound = random.randint(-3, 40)
    names = [each.name for each in model.columns]
    place = names.index(column.name) + 2
    sql = f'SELECT * FROM {_table(model)} WHERE "{column.name}" > ? ORDER BY _offset'
    want = [row for row in _wanted(model) if row[place] is not None and row[place] > bound]
    _same(_rows(world, sql, [bound]), want, sql)
    sql = f'SELECT count(*) FROM {_table(model)} WHERE "{column.name}" IS NULL'
    want = sum(1 for row in _wanted(model) if row[place] is None)
    _same(_rows(world, sql), [(want,)], sql)


def _grouped(world, model, random):
    column = model.columns[0]
    sql = f'SELECT "{column.name}", count(*) FROM {_table(model)} GROUP BY 1'
    want = {}
    for value in _values(model, column):
        want[value] = want.get(value, 0) + 1
    have = _rows(world, sql)
    require(len(have) == len(want), "groups come twice", sql=sql, have=have)
    _same(dict(have), want, sql)


def _point(world, model, random):
    names = {column.number: column.name for column in model.columns}
    keys = list({change.key: None for change in model.log.values()}) or [(0,) * len(model.key)]
    key = random.choice(keys)
    rows = {row_key: (at, row) for row_key, (at, row) in model.state.items()}
    where = " AND ".join(f'"{names[number]}" = ?' for number in model.key)
    found = rows.get(key)
    want = []
    if found is not None:
        want = [(found[0], model.times[found[0]], *model.shown(found[1]).values())]
    sql = f"SELECT * FROM {_table(model)} WHERE {where}"
    _same(_rows(world, sql, list(key)), want, f"{sql} {key}")
    if len(key) == 1:
        some = random.sample(keys, min(3, len(keys)))
        sql = f'SELECT "{names[model.key[0]]}", _offset FROM {_table(model)} WHERE '
        sql += f'"{names[model.key[0]]}" IN ({", ".join("?" * len(some))})'
        want = sorted((each[0], rows[each][0]) for each in some if each in rows)
        have = _rows(world, sql, [each[0] for each in some])
        _same(sorted(have), want, f"{sql} {some}")
