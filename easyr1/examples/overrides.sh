# Sourced by the scripts beside it. Makes OVERRIDES=(key=value ...) of those variables below that the environment
# sets: they win over the settings of a script, and what is typed after the name of a script wins over both.
OVERRIDES=()
_quote="'"
while read -r _variable _key; do
    _value=${!_variable}
    if [[ $_key == *_path || $_key == *_name ]] && [[ -n $_value && $_value != [$_quote\"]* ]]; then
        _value=$_quote${_value//$_quote/$_quote$_quote}$_quote # text as it is, whatever YAML would read in it
    fi
    [[ -n $_value ]] && OVERRIDES+=("$_key=$_value")
done <<'TABLE'
MODEL_PATH                   worker.actor.model.model_path
N_GPUS                       trainer.n_gpus_per_node
ROLLOUT_BATCH_SIZE           data.rollout_batch_size
GLOBAL_BATCH_SIZE            worker.actor.global_batch_size
MICRO_BATCH_SIZE_UPDATE      worker.actor.micro_batch_size_per_device_for_update
MICRO_BATCH_SIZE_EXPERIENCE  worker.actor.micro_batch_size_per_device_for_experience
ROLLOUT_N                    worker.rollout.n
MAX_PROMPT_LENGTH            data.max_prompt_length
MAX_RESPONSE_LENGTH          data.max_response_length
MAX_PIXELS                   data.max_pixels
GPU_MEMORY_UTILIZATION       worker.rollout.gpu_memory_utilization
LEARNING_RATE                worker.actor.optim.lr
KL_COEF                      algorithm.kl_coef
LORA_RANK                    worker.actor.model.lora.rank
TOTAL_EPOCHS                 trainer.total_epochs
VAL_FREQ                     trainer.val_freq
SAVE_FREQ                    trainer.save_freq
EXPERIMENT_NAME              trainer.experiment_name
TABLE
if [[ $LOGGER == *[![:space:]]* ]]; then # a list, as ["console","wandb"] or console,wandb
    [[ $LOGGER == *\[* ]] || LOGGER="[$LOGGER]"
    OVERRIDES+=("trainer.logger=$LOGGER")
fi
