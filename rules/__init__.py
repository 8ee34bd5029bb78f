"""What the advisor knows: values, models and rules. Pure: no I/O, no clock, no torch, no rich.

Read in this order: `machine`, `job`, `plan` (the values), `topology`, `fabric` (the links),
`memory`, `step_time` (the models), `strategies`, `recommend` (the choice), `catalog` (the findings).
"""
