# Sourced by scripts/test_training and VRAG-RL/train_tiny_cpu.sh: gives $PYTHON, an interpreter with everything that training
# needs, in .venv-train under $ROOT (about 2.5 GB). Made where there is none, brought up to date where the requirements changed.

. "$ROOT/scripts/lib/environment.sh"  # say, die

training_environment() {
  local folder=$ROOT/.venv-train wanted base="" candidate free_kb
  PYTHON=$folder/bin/python
  wanted=$(cat "$ROOT/pyproject.toml" "$ROOT/VRAG-RL/pyproject.toml" "$ROOT/VRAG-RL/requirements_train.txt" | cksum)
  [ "$(cat "$folder/.vrag-train" 2>/dev/null)" != "$wanted" ] || return 0
  if [ ! -x "$PYTHON" ]; then
    for candidate in ${VRAG_PYTHON:-} python3.12 python3.11 python3.10 python3; do
      # verl's tensordict has no wheels above 3.12
      if command -v "$candidate" >/dev/null 2>&1 && "$candidate" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 13))' 2>/dev/null; then
        base=$candidate
        break
      fi
    done
    [ -n "$base" ] || die "Training needs Python 3.10, 3.11 or 3.12, and none was found. Install one, or set VRAG_PYTHON to it."
    free_kb=$(df -Pk "$ROOT" | awk 'NR==2 {print $4}')
    [ "${free_kb:-0}" -ge 5000000 ] || die "Only $((free_kb / 1024)) MB are free under $ROOT; about 5 GB are needed to install what training needs."
    say "Setting up .venv-train (once; some minutes) ..."
    "$base" -m venv "$folder" || die "Could not create .venv-train with $base. On Debian and Ubuntu: apt install python3-venv"
  fi
  # The trainer's pins first: what the search service needs has to fit them, not the other way round.
  (
    cd "$ROOT/VRAG-RL"
    install() { "$PYTHON" -m pip install --quiet --disable-pip-version-check "$@"; }
    install --upgrade pip && install -e . && install -r requirements_train.txt && install -e "..[search,faiss-cpu,video]"
  ) || die "The installation failed; the lines above say why."
  printf '%s' "$wanted" > "$folder/.vrag-train"
}
