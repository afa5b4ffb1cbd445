/* kop.c - which buffers each operation has and how large they must be.
 *
 * One function per operation lists its buffers with the counts its shape asks for; kop_check holds
 * the list against the buffers that were given. The shape rules themselves are in kernels.h. */
#include "kop.h"

#include <limits.h>
#include <stdio.h>

/* Product of n dimensions, -1 where one is negative or the product does not fit. */
static int64_t product(int n, const int64_t *dims)
{
    int64_t p = 1;
    for (int i = 0; i < n; i++)
        if (dims[i] < 0 || __builtin_mul_overflow(p, dims[i], &p))
            return -1;
    return p;
}
#define DIMS(...)                                                                                  \
    product(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (int64_t[]){__VA_ARGS__})

struct list {
    struct kop_use *uses;
    int n;
};

static struct kop_use *use(struct list *l, const char *name, struct kbuf buf, enum kdtype dtype,
                           int64_t count)
{
    struct kop_use *u = &l->uses[l->n++];
    *u = (struct kop_use){.name = name, .buf = buf, .dtype = dtype, .count = count};
    return u;
}

static void use_optional(struct list *l, const char *name, struct kbuf buf, enum kdtype dtype,
                         int64_t count)
{
    use(l, name, buf, dtype, count)->optional = true;
}

static void uses_copy(struct list *l, const struct kop_copy *o, bool cast)
{
    use(l, "out", o->out, o->out.dtype, (int64_t)o->out.count);
    use(l, "in", o->in, cast ? o->in.dtype : o->out.dtype, (int64_t)o->out.count);
}

static void uses_sum_n(struct list *l, const struct kop_sum_n *o)
{
    use(l, "out", o->out, o->out.dtype, (int64_t)o->out.count);
    use(l, "in", o->in, o->out.dtype, DIMS(o->n, (int64_t)o->out.count));
}

static void uses_clip_factor(struct list *l, const struct kop_clip_factor *o)
{
    use(l, "norm", o->norm, K_F64, 1);
    use(l, "factor", o->factor, K_F64, 1);
    use(l, "sums", o->sums, K_F64, (int64_t)o->sums.count);
}

static void uses_adamw(struct list *l, const struct kop_adamw *o)
{
    enum kdtype t = o->param.dtype;
    int64_t n = (int64_t)o->param.count;
    use(l, "param", o->param, t, n);
    use(l, "grad", o->grad, t, n);
    use(l, "m", o->m, t, n);
    use(l, "v", o->v, t, n);
    use(l, "step", o->step, K_F64, KSTEP_COUNT);
    use(l, "factor", o->factor, K_F64, 1);
}

static void uses_matmul(struct list *l, const struct kop_matmul *o)
{
    enum kdtype t = o->out.dtype;
    int64_t x = DIMS(o->samples, o->rows, o->k), y = DIMS(o->samples, o->rows, o->n);
    int64_t w = DIMS(o->n, o->k);
    bool forward = o->mode == KMATMUL_FORWARD, weight = o->mode == KMATMUL_BACKWARD_WEIGHT;
    use(l, "out", o->out, t, forward ? y : weight ? w : x);
    use(l, "a", o->a, t, forward ? x : y);
    use(l, "b", o->b, t, weight ? x : w);
}

static void uses_norm_forward(struct list *l, const struct kop_norm_forward *o)
{
    enum kdtype t = o->y.dtype;
    int64_t n = DIMS(o->samples, o->rows, o->dim);
    use(l, "y", o->y, t, n);
    use(l, "rstd", o->rstd, t, DIMS(o->samples, o->rows));
    use_optional(l, "sum", o->sum, t, n);
    use(l, "x", o->x, t, n);
    use_optional(l, "residual", o->residual, t, n);
    use(l, "weight", o->weight, t, o->dim);
}

static void uses_norm_backward_input(struct list *l, const struct kop_norm_backward_input *o)
{
    enum kdtype t = o->dx.dtype;
    int64_t n = DIMS(o->samples, o->rows, o->dim);
    use(l, "dx", o->dx, t, n);
    use_optional(l, "dresidual", o->dresidual, t, n);
    use(l, "dy", o->dy, t, n);
    use(l, "h", o->h, t, n);
    use(l, "rstd", o->rstd, t, DIMS(o->samples, o->rows));
    use(l, "weight", o->weight, t, o->dim);
}

static void uses_norm_backward_weight(struct list *l, const struct kop_norm_backward_weight *o)
{
    enum kdtype t = o->dweight.dtype;
    int64_t n = DIMS(o->samples, o->rows, o->dim);
    use(l, "dweight", o->dweight, t, o->dim);
    use(l, "dy", o->dy, t, n);
    use(l, "h", o->h, t, n);
    use(l, "rstd", o->rstd, t, DIMS(o->samples, o->rows));
}

static void uses_rope(struct list *l, const struct kop_rope *o)
{
    int64_t last;
    if (__builtin_add_overflow(o->first, o->rows, &last))
        last = -1;
    use(l, "x", o->x, o->x.dtype, DIMS(o->samples, o->rows, o->heads, o->dim));
    /* The table may be longer than this microbatch needs. */
    int64_t need = o->first < 0 ? -1 : DIMS(last, o->dim);
    int64_t have = (int64_t)o->table.count;
    use(l, "table", o->table, o->x.dtype, need >= 0 && have > need ? have : need);
}

static void uses_attention_forward(struct list *l, const struct kop_attention_forward *o)
{
    enum kdtype t = o->o.dtype;
    int64_t q = DIMS(o->samples, o->rows, o->heads, o->dim);
    int64_t kv = DIMS(o->samples, o->rows, o->kv_heads, o->dim);
    use(l, "o", o->o, t, q);
    use(l, "lse", o->lse, t, DIMS(o->samples, o->heads, o->rows));
    use(l, "q", o->q, t, q);
    use(l, "k", o->k, t, kv);
    use(l, "v", o->v, t, kv);
}

static void uses_attention_backward(struct list *l, const struct kop_attention_backward *o)
{
    enum kdtype t = o->dq.dtype;
    int64_t q = DIMS(o->samples, o->rows, o->heads, o->dim);
    int64_t kv = DIMS(o->samples, o->rows, o->kv_heads, o->dim);
    use(l, "dq", o->dq, t, q);
    use(l, "dk", o->dk, t, kv);
    use(l, "dv", o->dv, t, kv);
    use(l, "dout", o->dout, t, q);
    use(l, "o", o->o, t, q);
    use(l, "lse", o->lse, t, DIMS(o->samples, o->heads, o->rows));
    use(l, "q", o->q, t, q);
    use(l, "k", o->k, t, kv);
    use(l, "v", o->v, t, kv);
}

static void uses_swiglu_forward(struct list *l, const struct kop_swiglu_forward *o)
{
    enum kdtype t = o->out.dtype;
    int64_t n = (int64_t)o->out.count;
    use(l, "out", o->out, t, n);
    use(l, "gate", o->gate, t, n);
    use(l, "up", o->up, t, n);
}

static void uses_swiglu_backward(struct list *l, const struct kop_swiglu_backward *o)
{
    enum kdtype t = o->dgate.dtype;
    int64_t n = (int64_t)o->dgate.count;
    use(l, "dgate", o->dgate, t, n);
    use(l, "dup", o->dup, t, n);
    use(l, "dh", o->dh, t, n);
    use(l, "gate", o->gate, t, n);
    use(l, "up", o->up, t, n);
}

static void uses_embedding(struct list *l, const struct kop_embedding *o, bool forward)
{
    enum kdtype t = o->out.dtype;
    int64_t rows = DIMS(o->count, o->dim), table = DIMS(o->vocab, o->dim);
    use(l, forward ? "y" : "dtable", o->out, t, forward ? rows : table);
    use(l, forward ? "table" : "dy", o->table_or_dy, t, forward ? table : rows);
    use(l, "tokens", o->tokens, K_I32, o->count);
}

static void uses_xent(struct list *l, const struct kop_xent *o, enum kop_kind kind)
{
    enum kdtype t = o->logits.dtype;
    int64_t rows = DIMS(o->samples, o->rows), n = DIMS(o->samples, o->rows, o->vocab);
    use(l, "logits", o->logits, t, n);
    use(l, "max", o->max, t, rows);
    if (kind == KOP_XENT_MAX)
        return;
    use(l, "targets", o->targets, K_I32, rows);
    use(l, "sums", o->sums, t, DIMS(2, rows));
    if (kind == KOP_XENT_SUM)
        return;
    use(l, "loss", o->loss, K_F64, o->samples);
    use_optional(l, "dlogits", o->dlogits, t, n);
}

static void uses_plain(struct list *l, const struct kop *op)
{
    switch (op->kind) {
    case KOP_UPLOAD:
        use(l, "out", op->upload.out, op->upload.out.dtype, (int64_t)op->upload.out.count);
        break;
    case KOP_DOWNLOAD:
        use(l, "in", op->download.in, op->download.in.dtype, (int64_t)op->download.in.count);
        break;
    case KOP_FILL:
        use(l, "out", op->fill.out, op->fill.out.dtype, (int64_t)op->fill.out.count);
        break;
    case KOP_FILL_NORMAL:
        use(l, "out", op->fill_normal.out, op->fill_normal.out.dtype,
            DIMS(op->fill_normal.rows, op->fill_normal.cols));
        break;
    case KOP_ADD:
        use(l, "out", op->add.out, op->add.out.dtype, (int64_t)op->add.out.count);
        use(l, "a", op->add.a, op->add.out.dtype, (int64_t)op->add.out.count);
        use(l, "b", op->add.b, op->add.out.dtype, (int64_t)op->add.out.count);
        break;
    case KOP_SCALE:
        use(l, "x", op->scale.x, op->scale.x.dtype, (int64_t)op->scale.x.count);
        use(l, "factor", op->scale.factor, K_F64, 1);
        break;
    case KOP_SUM_SQUARES:
        use(l, "x", op->sum_squares.x, op->sum_squares.x.dtype, (int64_t)op->sum_squares.x.count);
        use(l, "out", op->sum_squares.out, K_F64, 1);
        break;
    default:
        break;
    }
}

int kop_uses(const struct kop *op, struct kop_use uses[KOP_MAX_USES])
{
    struct list l = {uses, 0};
    switch (op->kind) {
    case KOP_COPY:
    case KOP_CAST:
        uses_copy(&l, &op->copy, op->kind == KOP_CAST);
        break;
    case KOP_SUM_N:
    case KOP_MAX_N:
        uses_sum_n(&l, &op->sum_n);
        break;
    case KOP_CLIP_FACTOR:
        uses_clip_factor(&l, &op->clip_factor);
        break;
    case KOP_ADAMW:
        uses_adamw(&l, &op->adamw);
        break;
    case KOP_MATMUL:
        uses_matmul(&l, &op->matmul);
        break;
    case KOP_NORM_FORWARD:
        uses_norm_forward(&l, &op->norm_forward);
        break;
    case KOP_NORM_BACKWARD_INPUT:
        uses_norm_backward_input(&l, &op->norm_backward_input);
        break;
    case KOP_NORM_BACKWARD_WEIGHT:
        uses_norm_backward_weight(&l, &op->norm_backward_weight);
        break;
    case KOP_ROPE:
        uses_rope(&l, &op->rope);
        break;
    case KOP_ATTENTION_FORWARD:
        uses_attention_forward(&l, &op->attention_forward);
        break;
    case KOP_ATTENTION_BACKWARD:
        uses_attention_backward(&l, &op->attention_backward);
        break;
    case KOP_SWIGLU_FORWARD:
        uses_swiglu_forward(&l, &op->swiglu_forward);
        break;
    case KOP_SWIGLU_BACKWARD:
        uses_swiglu_backward(&l, &op->swiglu_backward);
        break;
    case KOP_EMBEDDING_FORWARD:
    case KOP_EMBEDDING_BACKWARD:
        uses_embedding(&l, &op->embedding, op->kind == KOP_EMBEDDING_FORWARD);
        break;
    case KOP_XENT_MAX:
    case KOP_XENT_SUM:
    case KOP_XENT_LOSS:
        uses_xent(&l, &op->xent, op->kind);
        break;
    default:
        uses_plain(&l, op);
        break;
    }
    return l.n;
}

/* The numbers of op's shape, for an error's text. */
static void shape_text(const struct kop *op, char *text, size_t size)
{
    const struct kop_matmul *mm = &op->matmul;
    const struct kop_attention_forward *af = &op->attention_forward;
    const struct kop_attention_backward *ab = &op->attention_backward;
    const struct kop_norm_forward *nf = &op->norm_forward;
    const struct kop_norm_backward_input *ni = &op->norm_backward_input;
    const struct kop_norm_backward_weight *nw = &op->norm_backward_weight;
#define LL(x) ((long long)(x))
#define ROWS_DIM(o)                                                                                \
    snprintf(text, size, " (samples %lld, rows %lld, dim %lld)", LL((o)->samples), LL((o)->rows),  \
             LL((o)->dim))
#define HEADS(o)                                                                                   \
    snprintf(text, size, " (samples %lld, rows %lld, heads %lld, kv_heads %lld, dim %lld)",        \
             LL((o)->samples), LL((o)->rows), LL((o)->heads), LL((o)->kv_heads), LL((o)->dim))
    text[0] = 0;
    switch (op->kind) {
    case KOP_MATMUL:
        snprintf(text, size, " (samples %lld, rows %lld, n %lld, k %lld)", LL(mm->samples),
                 LL(mm->rows), LL(mm->n), LL(mm->k));
        break;
    case KOP_NORM_FORWARD:
        ROWS_DIM(nf);
        break;
    case KOP_NORM_BACKWARD_INPUT:
        ROWS_DIM(ni);
        break;
    case KOP_NORM_BACKWARD_WEIGHT:
        ROWS_DIM(nw);
        break;
    case KOP_ROPE:
        snprintf(text, size, " (samples %lld, rows %lld, heads %lld, dim %lld, first %lld)",
                 LL(op->rope.samples), LL(op->rope.rows), LL(op->rope.heads), LL(op->rope.dim),
                 LL(op->rope.first));
        break;
    case KOP_ATTENTION_FORWARD:
        HEADS(af);
        break;
    case KOP_ATTENTION_BACKWARD:
        HEADS(ab);
        break;
    case KOP_EMBEDDING_FORWARD:
    case KOP_EMBEDDING_BACKWARD:
        snprintf(text, size, " (count %lld, dim %lld, vocab %lld)", LL(op->embedding.count),
                 LL(op->embedding.dim), LL(op->embedding.vocab));
        break;
    case KOP_XENT_MAX:
    case KOP_XENT_SUM:
    case KOP_XENT_LOSS:
        snprintf(text, size, " (samples %lld, rows %lld, vocab %lld)", LL(op->xent.samples),
                 LL(op->xent.rows), LL(op->xent.vocab));
        break;
    case KOP_SUM_N:
    case KOP_MAX_N:
        snprintf(text, size, " (n %d)", op->sum_n.n);
        break;
    default:
        break;
    }
#undef LL
#undef ROWS_DIM
#undef HEADS
}

static int check_use(const struct kop *op, const struct kop_use *u, struct err *err)
{
    const char *name = kop_name(op->kind);
    char shape[160];
    if (u->buf.mem == NULL) {
        if (u->optional)
            return 0;
        return err_set(err, "%s: %s is not given", name, u->name);
    }
    if (u->buf.dtype == u->dtype && u->count >= 0 && u->buf.count == (size_t)u->count)
        return 0;
    shape_text(op, shape, sizeof(shape));
    if (u->count < 0)
        return err_set(err, "%s: the shape is negative or too large%s", name, shape);
    return err_set(err, "%s: %s holds %zu %s, must hold %lld %s%s", name, u->name, u->buf.count,
                   kdtype_name(u->buf.dtype), (long long)u->count, kdtype_name(u->dtype), shape);
}

/* Attention's and rope's own rules about heads. */
static int check_heads(const char *name, int64_t heads, int64_t kv_heads, int64_t dim,
                       struct err *err)
{
    if (kv_heads < 1 || heads % kv_heads != 0)
        return err_set(err, "%s: %lld heads are not a multiple of %lld kv_heads", name,
                       (long long)heads, (long long)kv_heads);
    if (dim < 1)
        return err_set(err, "%s: head size is %lld, must be at least 1", name, (long long)dim);
    if (heads > INT_MAX / dim)
        return err_set(err, "%s: %lld heads of %lld are above %d", name, (long long)heads,
                       (long long)dim, INT_MAX);
    return 0;
}

static int check_normal(const struct kop_fill_normal *o, struct err *err)
{
    if (o->row0 >= 0 && o->col0 >= 0 && o->cols <= o->global_cols &&
        o->col0 <= o->global_cols - o->cols)
        return 0;
    return err_set(err,
                   "fill_normal: columns %lld to %lld of row %lld do not lie in a matrix of %lld "
                   "columns",
                   (long long)o->col0, (long long)(o->col0 + o->cols), (long long)o->row0,
                   (long long)o->global_cols);
}

static bool is_float(enum kdtype dtype)
{
    return dtype == K_F64 || dtype == K_F32 || dtype == K_BF16;
}

/* Rules beyond the counts. */
static int check_rules(const struct kop *op, enum kdtype dtype, struct err *err)
{
    const char *name = kop_name(op->kind);
    const struct kop_attention_forward *af = &op->attention_forward;
    const struct kop_attention_backward *ab = &op->attention_backward;
    switch (op->kind) {
    case KOP_UPLOAD:
    case KOP_DOWNLOAD:
    case KOP_COPY:
    case KOP_FILL:
        return 0;
    case KOP_SUM_N:
    case KOP_MAX_N:
        if (op->sum_n.n < 1)
            return err_set(err, "%s: n is %d, must be at least 1", name, op->sum_n.n);
        return 0;
    case KOP_CAST:
        if (!is_float(op->copy.in.dtype))
            return err_set(err, "cast: in is %s, must be floating", kdtype_name(op->copy.in.dtype));
        break;
    case KOP_FILL_NORMAL:
        if (check_normal(&op->fill_normal, err) != 0)
            return -1;
        break;
    case KOP_MATMUL:
        if (op->matmul.n > INT_MAX || op->matmul.k > INT_MAX)
            return err_set(err, "matmul: n %lld or k %lld is above %d", (long long)op->matmul.n,
                           (long long)op->matmul.k, INT_MAX);
        break;
    case KOP_ROPE:
        if (op->rope.dim % 2 != 0)
            return err_set(err, "rope: head size %lld is odd", (long long)op->rope.dim);
        break;
    case KOP_ATTENTION_FORWARD:
        if (check_heads(name, af->heads, af->kv_heads, af->dim, err) != 0)
            return -1;
        break;
    case KOP_ATTENTION_BACKWARD:
        if (check_heads(name, ab->heads, ab->kv_heads, ab->dim, err) != 0)
            return -1;
        break;
    default:
        break;
    }
    if (!is_float(dtype))
        return err_set(err, "%s: a %s buffer where a floating one is needed", name,
                       kdtype_name(dtype));
    return 0;
}

int kop_check(const struct kop *op, struct err *err)
{
    struct kop_use uses[KOP_MAX_USES];
    if ((unsigned)op->kind >= KOP_KINDS)
        return err_set(err, "operation %d does not exist", (int)op->kind);
    int n = kop_uses(op, uses);
    for (int i = 0; i < n; i++)
        if (check_use(op, &uses[i], err) != 0)
            return -1;
    return check_rules(op, uses[0].dtype, err);
}
