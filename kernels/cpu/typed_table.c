/* typed_table.c - the table of operations for one (type, instruction set). */
#include "typed.h"

#if VBYTES == 64
#define ISA "avx512"
#elif VBYTES == 32
#define ISA "avx2"
#else
#define ISA "base"
#endif

const struct cpu_table TYPED(cpu_table) = {
    .isa = ISA,
    .op =
        {
            [KOP_ADD] = TYPED(cpu_add),
            [KOP_SCALE] = TYPED(cpu_scale),
            [KOP_SUM_N] = TYPED(cpu_sum_n),
            [KOP_MAX_N] = TYPED(cpu_max_n),
            [KOP_SUM_SQUARES] = TYPED(cpu_sum_squares),
            [KOP_ADAMW] = TYPED(cpu_adamw),
            [KOP_MATMUL] = TYPED(cpu_matmul),
            [KOP_NORM_FORWARD] = TYPED(cpu_norm_forward),
            [KOP_NORM_BACKWARD_INPUT] = TYPED(cpu_norm_backward_input),
            [KOP_NORM_BACKWARD_WEIGHT] = TYPED(cpu_norm_backward_weight),
            [KOP_ROPE] = TYPED(cpu_rope),
            [KOP_ATTENTION_FORWARD] = TYPED(cpu_attention_forward),
            [KOP_ATTENTION_BACKWARD] = TYPED(cpu_attention_backward),
            [KOP_SWIGLU_FORWARD] = TYPED(cpu_swiglu_forward),
            [KOP_SWIGLU_BACKWARD] = TYPED(cpu_swiglu_backward),
            [KOP_EMBEDDING_FORWARD] = TYPED(cpu_embedding_forward),
            [KOP_EMBEDDING_BACKWARD] = TYPED(cpu_embedding_backward),
            [KOP_XENT_MAX] = TYPED(cpu_xent_max),
            [KOP_XENT_SUM] = TYPED(cpu_xent_sum),
            [KOP_XENT_LOSS] = TYPED(cpu_xent_loss),
        },
};
