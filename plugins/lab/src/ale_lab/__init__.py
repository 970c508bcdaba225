"""The lab: comparisons of algorithms, run through the `ale` command line over several seeds (`ale lab`).

1. An *experiment* (`catalogue`) names a recipe (a run file), its arms (the settings that are compared), and the charts
   and columns that show the result.
2. All arms of a seed begin from the same warm start (`run_plan`). A run is not made again if it is finished
   (`make_runs`), or if the results of an earlier lab have its numbers (`earlier_results`).
3. The runs' databases are read as series (`read_runs`), the series are summed up as means with bootstrap intervals
   (`confidence_intervals`), and these are written as a figure, a table and JSON (`figure`, `results`).
"""
