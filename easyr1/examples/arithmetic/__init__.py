"""The example smollm2_135m_arithmetic_grpo.sh: a real small language model learns to add, on a CPU."""
