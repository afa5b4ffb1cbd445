/* metrics_line.c - one line about one step, for people; see metrics_line.h. */
#include "train/metrics_line.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    FIELD_BYTES = 48,
    MIN_GAP_MS = 1000,  /* plain lines are not closer than this */
    MAX_GAP_MS = 60000, /* nor farther apart, if steps are done at all */
    GAP_PARTS = 100,    /* of the run */
};

/* In the order in which they stand. */
enum field { STEP, LOSS, VAL, GRAD, LR, RATE, MFU, CHECKPOINT, REPLICAS, SPARES, LEFT, FIELDS };

/* In the order in which they are given up. */
static const enum field LEAST_FIRST[] = {LR,         GRAD,     SPARES, VAL,  MFU,
                                         CHECKPOINT, REPLICAS, LEFT,   RATE, LOSS};

__attribute__((format(printf, 2, 3))) static void set(char *field, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    vsnprintf(field, FIELD_BYTES, format, ap);
    va_end(ap);
}

/* 950, 1.23k, 45.6k, 7.89M: three digits that count. */
static void set_rate(char *field, double rate)
{
    static const char *const units[] = {"", "k", "M", "G"};
    size_t unit = 0;
    while (rate >= 999.5 && unit + 1 < sizeof units / sizeof *units) {
        rate /= 1000;
        unit++;
    }
    int digits = rate >= 99.95 || unit == 0 ? 0 : rate >= 9.995 ? 1 : 2;
    set(field, "%.*f%s tokens/s", digits, rate, units[unit]);
}

static void set_left(char *field, double seconds)
{
    if (seconds > 1e8) /* three years: a first step that took long, no forecast */
        return;
    long s = (long)(seconds + 0.5);
    if (s < 60)
        set(field, "ETA %lds", s);
    else if (s < 3600)
        set(field, "ETA %ldm%02lds", s / 60, s % 60);
    else if (s < 86400)
        set(field, "ETA %ldh%02ldm", s / 3600, s / 60 % 60);
    else
        set(field, "ETA %ldd%02ldh", s / 86400, s / 3600 % 24);
}

static int digits(int64_t n)
{
    char text[24];
    return snprintf(text, sizeof text, "%lld", (long long)n);
}

static void set_fields(char fields[FIELDS][FIELD_BYTES], const struct metrics_view *v)
{
    const struct metrics_step *s = &v->step;
    set(fields[STEP], "step %*lld/%lld", digits(v->total_steps), (long long)s->step,
        (long long)v->total_steps);
    set(fields[LOSS], "loss %.4f", s->loss);
    if (!isnan(v->val_loss))
        set(fields[VAL], "val %.4f", v->val_loss);
    if (!isnan(s->grad_norm))
        set(fields[GRAD], "grad %.3g", s->grad_norm);
    if (!isnan(s->lr))
        set(fields[LR], "lr %.3g", s->lr);
    if (isfinite(v->tokens_per_s))
        set_rate(fields[RATE], v->tokens_per_s);
    if (isfinite(v->mfu) && s->mfu_about)
        set(fields[MFU], "MFU about %.0f %%", v->mfu * 100);
    else if (isfinite(v->mfu))
        set(fields[MFU], "MFU %.1f %%", v->mfu * 100);
    if (s->checkpoint_step >= 0 && s->checkpoint_step == s->step)
        set(fields[CHECKPOINT], "checkpoint now");
    else if (s->checkpoint_step >= 0)
        set(fields[CHECKPOINT], "checkpoint %lld steps ago",
            (long long)(s->step - s->checkpoint_step));
    if (s->replicas < s->planned_replicas)
        set(fields[REPLICAS], "%d of %d replicas", s->replicas, s->planned_replicas);
    if (s->spares > 0)
        set(fields[SPARES], "%d spare%s", s->spares, s->spares == 1 ? "" : "s");
    if (isfinite(v->left_s) && s->step < v->total_steps)
        set_left(fields[LEFT], v->left_s);
}

static size_t join(char *out, size_t size, char fields[FIELDS][FIELD_BYTES])
{
    size_t length = 0;
    out[0] = 0;
    for (int i = 0; i < FIELDS; i++) {
        if (!fields[i][0] || length + 1 >= size)
            continue;
        int n = snprintf(out + length, size - length, "%s%s", length ? "  " : "", fields[i]);
        length += (size_t)n < size - length ? (size_t)n : size - length - 1;
    }
    return length;
}

size_t metrics_line(char *out, size_t size, int width, const struct metrics_view *view)
{
    char fields[FIELDS][FIELD_BYTES] = {{0}};
    set_fields(fields, view);
    size_t length = join(out, size, fields);
    size_t most = width > 0 ? (size_t)width : size;
    for (size_t i = 0; length > most && i < sizeof LEAST_FIRST / sizeof *LEAST_FIRST; i++) {
        fields[LEAST_FIRST[i]][0] = 0;
        length = join(out, size, fields);
    }
    if (length > most) {
        length = most;
        out[length] = 0;
    }
    return length;
}

bool metrics_line_due(int64_t step, int64_t total_steps, bool validated, int64_t last_step,
                      int64_t since_ms)
{
    if (validated || last_step <= 0 || step < last_step || step >= total_steps)
        return true;
    if (since_ms >= MAX_GAP_MS)
        return true;
    return since_ms >= MIN_GAP_MS && (step - last_step) * GAP_PARTS >= total_steps;
}
