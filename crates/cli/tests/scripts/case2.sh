# Run in a guest of the machine two-node as `sh -c SCRIPT NEARFAR OPTIONS`, after crates/bench/src/cases/preferred_node.sh has prepared it:
# `bench probe OPTIONS`, its answer as JSON, and in the folder of results the store, the table and the samples as Parquet.
set -e
store=$NEARFAR_RESULTS/runs.db
"$0" bench probe --store "$store" --format json "$@"
"$0" runs show last --store "$store" > "$NEARFAR_RESULTS/table.txt"
"$0" runs export last --store "$store" --format parquet -o "$NEARFAR_RESULTS/run.parquet"
