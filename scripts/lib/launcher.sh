# Sourced by the launchers in VRAG-RL: gives $surroundings, the settings of a training that come from the environment.
#
#   TRAIN, VAL              the tables; data/overall_train.parquet and data/overall_test.parquet, as the converter names them
#   MODEL                   a folder with a whole checkpoint, or a name on the hub
#   OUT                     the folder of checkpoints, logs and records; runs/$NAME
#   SEARCH_URL              the search service; else VRAG_SEARCH_URL
#   JUDGE_URL, JUDGE_MODEL  the judge; else VRAG_JUDGE_BASE_URL, VRAG_JUDGE_MODEL. A key: VRAG_JUDGE_API_KEY
#   GPUS, NODES             numbers: GPUS on each of NODES machines
#
# Callers set those that have no value here: NAME, MODEL, GPUS.

# A value as Hydra reads it: one string, whatever characters it has and though it looks like a number. Between single quotes
# backslashes mean themselves, but for those before a quote.
quoted() {
  printf "'%s'" "$(printf %s "$1" | sed -E "s/(\\\\+)('|\$)/\\1\\1\\2/g; s/'/\\\\'/g")"
}

out=${OUT:-runs/$NAME}
surroundings=(
  "vrag.search.search_url=$(quoted "${SEARCH_URL:-${VRAG_SEARCH_URL:-http://127.0.0.1:8001/search}}")"
  "vrag.judge.settings.base_url=$(quoted "${JUDGE_URL:-${VRAG_JUDGE_BASE_URL:-http://127.0.0.1:8002/v1}}")"
  # Without a name: the one model that is served there.
  "vrag.judge.settings.model=$(quoted "${JUDGE_MODEL:-${VRAG_JUDGE_MODEL:-}}")"
  "vrag.judge.settings.cache=$(quoted "$out/judge_cache")"
  "data.train_files=$(quoted "${TRAIN:-data/overall_train.parquet}")"
  "data.val_files=$(quoted "${VAL:-data/overall_test.parquet}")"
  "actor_rollout_ref.model.path=$(quoted "$MODEL")"
  "trainer.n_gpus_per_node=$GPUS"
  "trainer.nnodes=${NODES:-1}"
  "trainer.experiment_name=$(quoted "$NAME")"
  "trainer.default_local_dir=$(quoted "$out")"
  "vrag.records.folder=$(quoted "$out/records")"
)
