/* program_draw.c - programs on a time line, as text and as a picture. */
#include "train/program.h"
#include "train/program_walk.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* ---- simulated time ---- */

struct clockwork {
    const struct program *stages;
    int n_stages;
    struct program_costs costs;
    double **start, **end;
};

static double cost_of(const struct clockwork *c, enum action_kind kind)
{
    return kind == ACTION_FORWARD           ? c->costs.forward
           : kind == ACTION_BACKWARD_INPUT  ? c->costs.backward_input
           : kind == ACTION_BACKWARD_WEIGHT ? c->costs.backward_weight
                                            : 0;
}

/* When stage's action could start, by its own stage alone. */
static double ready(const struct clockwork *c, int stage, int index)
{
    const struct program *p = &c->stages[stage];
    const struct action *a = &p->actions[index];
    double time = 0;
    for (int i = index - 1; i >= 0; i--)
        if (p->actions[i].stream == a->stream) {
            time = c->end[stage][i];
            break;
        }
    for (int i = 0; i < a->n_waits; i++)
        time = fmax(time, c->end[stage][a->waits[i]]);
    return time;
}

/* The same meeting in another stage's program, -1: it has none. Meetings are at its end. */
static int find_meeting(const struct program *p, enum action_kind kind)
{
    for (int i = p->n - 1; i >= 0 && p->actions[i].microbatch < 0; i--)
        if (p->actions[i].kind == kind)
            return i;
    return -1;
}

static void tick(void *arg, int stage, int index, int from)
{
    struct clockwork *c = arg;
    const struct action *a = &c->stages[stage].actions[index];
    double time = ready(c, stage, index);
    if (from >= 0)
        time = fmax(time, c->end[a->peer_stage][from]);
    bool meeting = a->kind == ACTION_NORM || (a->kind == ACTION_REDUCE_TIED && a->peer_stage >= 0);
    for (int other = 0; meeting && other < c->n_stages; other++) {
        bool meets = a->kind == ACTION_NORM || other == a->peer_stage;
        int there = meets ? find_meeting(&c->stages[other], a->kind) : -1;
        if (there >= 0)
            time = fmax(time, ready(c, other, there));
    }
    c->start[stage][index] = time;
    c->end[stage][index] = time + cost_of(c, a->kind);
}

void program_times_free(double **times, int n_stages)
{
    for (int i = 0; times && i < n_stages; i++)
        free(times[i]);
    free(times);
}

static double **times_new(const struct program *stages, int n_stages)
{
    double **times = calloc((size_t)n_stages, sizeof *times);
    for (int i = 0; times && i < n_stages; i++)
        if (!(times[i] = calloc((size_t)stages[i].n + 1, sizeof **times))) {
            program_times_free(times, n_stages);
            return NULL;
        }
    return times;
}

int program_simulate(const struct program *stages, int n_stages, const struct program_costs *costs,
                     double ***start, double ***end, double *length, struct err *err)
{
    struct clockwork c = {.stages = stages, .n_stages = n_stages, .costs = {1, 1, 1}};
    if (costs)
        c.costs = *costs;
    *start = *end = NULL;
    *length = 0;
    if (program_check(stages, n_stages, err) < 0)
        return -1;
    c.start = times_new(stages, n_stages);
    c.end = times_new(stages, n_stages);
    if (!c.start || !c.end) {
        err_set(err, "not enough memory to simulate %d stages", n_stages);
        goto fail;
    }
    if (program_walk(stages, n_stages, tick, &c, err) < 0)
        goto fail;
    for (int s = 0; s < n_stages; s++)
        for (int i = 0; i < stages[s].n; i++)
            *length = fmax(*length, c.end[s][i]);
    *start = c.start;
    *end = c.end;
    return 0;
fail:
    program_times_free(c.start, n_stages);
    program_times_free(c.end, n_stages);
    return -1;
}

/* ---- text ---- */

enum { TEXT_UNITS = 100, TEXT_STAGES = 16 };

static void draw_row(const struct program *p, const double *start, int units, FILE *out)
{
    char row[TEXT_UNITS + 1];
    memset(row, '.', (size_t)units);
    row[units] = 0;
    for (int i = 0; i < p->n; i++) {
        int at = (int)start[i], digit = p->actions[i].microbatch % 10;
        if (at >= units)
            continue;
        if (p->actions[i].kind == ACTION_FORWARD)
            row[at] = (char)('0' + digit);
        else if (p->actions[i].kind == ACTION_BACKWARD_INPUT)
            row[at] = (char)('a' + digit);
        else if (p->actions[i].kind == ACTION_BACKWARD_WEIGHT)
            row[at] = '-';
    }
    fprintf(out, "stage %-4d |%s\n", p->stage, row);
}

int program_print(const struct program *stages, int n_stages, FILE *out, struct err *err)
{
    double **start, **end, length;
    if (program_simulate(stages, n_stages, NULL, &start, &end, &length, err) < 0)
        return -1;
    int units = length > TEXT_UNITS ? TEXT_UNITS : (int)length;
    for (int s = 0; s < n_stages; s++) {
        if (n_stages > TEXT_STAGES && s == TEXT_STAGES / 2) {
            fprintf(out, "... %d more stages ...\n", n_stages - TEXT_STAGES);
            s = n_stages - TEXT_STAGES / 2;
        }
        draw_row(&stages[s], start[s], units, out);
    }
    double busy = 3.0 * (double)stages[0].microbatches;
    fprintf(out, "0, 1, ...: forward of a microbatch (its last digit); a, b, ...: backward of its "
                 "input; -: of the weights; .: idle\n");
    if (units < length)
        fprintf(out, "the first %d of %.0f units are shown\n", units, length);
    fprintf(out,
            "%.0f units, %.0f of them busy on each stage: %.1f %% idle; microbatches in flight: "
            "%d on the first stage, %d on the last\n",
            length, busy, 100 * (length - busy) / length, stages[0].slots,
            stages[n_stages - 1].slots);
    program_times_free(start, n_stages);
    program_times_free(end, n_stages);
    if (ferror(out))
        return err_set(err, "the schedule could not be written");
    return 0;
}

int program_print_actions(const struct program *p, FILE *out)
{
    fprintf(out, "stage %d of %d: %d actions, %lld microbatches, %d slots\n", p->stage, p->stages,
            p->n, (long long)p->microbatches, p->slots);
    for (int i = 0; i < p->n; i++) {
        const struct action *a = &p->actions[i];
        char text[120];
        action_text(a, text, sizeof text);
        fprintf(out, "%6d  %-8s %s", i, a->stream == PROGRAM_STREAM_COMM ? "comm" : "compute",
                text);
        if (a->peer_stage >= 0)
            fprintf(out, ", stage %d", a->peer_stage);
        for (int k = 0; k < a->n_waits; k++)
            fprintf(out, "%s%d", k ? ", " : " after ", a->waits[k]);
        fputc('\n', out);
    }
    return ferror(out) ? -1 : 0;
}

/* ---- picture ---- */

/* Pixels, and how much is drawn before it is cut: a picture of more is grey. */
enum { ROW = 26, GAP = 4, LABEL = 76, SVG_UNITS = 240, SVG_STAGES = 32 };

static const char *colour_of(enum action_kind kind)
{
    return kind == ACTION_FORWARD           ? "#3b7dd8"
           : kind == ACTION_BACKWARD_INPUT  ? "#e08a2e"
           : kind == ACTION_BACKWARD_WEIGHT ? "#5aa469"
                                            : NULL;
}

/* The size of numbers that fit a box of one unit, all of them or none: 0. A digit is a good half as
 * wide as it is high. */
static int font_of(int64_t microbatches, double unit)
{
    int digits = microbatches > 1000 ? 4 : microbatches > 100 ? 3 : microbatches > 10 ? 2 : 1;
    return unit >= 8 * digits + 2 ? 11 : unit >= 6 * digits ? 9 : 0;
}

static void draw_box(const struct action *a, double x, double y, double width, int font, FILE *out)
{
    char text[120];
    action_text(a, text, sizeof text);
    fprintf(out,
            "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\" rx=\"2\" fill=\"%s\">"
            "<title>%s</title></rect>\n",
            x, y, width > 3 ? width - 1 : width, ROW, colour_of(a->kind), text);
    if (font > 0)
        fprintf(out,
                "<text x=\"%.2f\" y=\"%.1f\" text-anchor=\"middle\" fill=\"#fff\" "
                "font-size=\"%d\">%d</text>\n",
                x + (width - 1) / 2, y + ROW / 2.0 + 4, font, a->microbatch);
}

static void draw_legend(double y, double length, double units, double busy, FILE *out)
{
    static const enum action_kind kinds[] = {ACTION_FORWARD, ACTION_BACKWARD_INPUT,
                                             ACTION_BACKWARD_WEIGHT};
    double x = LABEL;
    for (int i = 0; i < 3; i++) {
        fprintf(out,
                "<rect x=\"%.0f\" y=\"%.1f\" width=\"12\" height=\"12\" rx=\"2\" fill=\"%s\"/>"
                "<text x=\"%.0f\" y=\"%.1f\" font-size=\"12\" fill=\"#333\">%s</text>\n",
                x, y, colour_of(kinds[i]), x + 17, y + 10.5, action_name(kinds[i]));
        x += 140;
    }
    fprintf(out, "<text x=\"%.0f\" y=\"%.1f\" font-size=\"12\" fill=\"#333\">", x, y + 10.5);
    if (units < length)
        fprintf(out, "the first %.0f of %.0f units; ", units, length);
    fprintf(out, "idle %.1f %% of the step</text>\n", 100 * (length - busy) / length);
}

static void draw_stage(const struct program *p, const double *start, const double *end, double y,
                       double width, double units, FILE *out)
{
    double scale = (width - LABEL) / units;
    int font = font_of(p->microbatches, scale);
    fprintf(out,
            "<text x=\"0\" y=\"%.1f\" font-size=\"12\" fill=\"#333\">stage %d</text>\n"
            "<rect x=\"%d\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" fill=\"#eceef1\"/>\n",
            y + ROW / 2.0 + 4, p->stage, LABEL, y, width - LABEL, ROW);
    for (int i = 0; i < p->n; i++)
        if (colour_of(p->actions[i].kind) && end[i] <= units)
            draw_box(&p->actions[i], LABEL + start[i] * scale, y, (end[i] - start[i]) * scale, font,
                     out);
}

int program_svg(const struct program *stages, int n_stages, double width, double *height, FILE *out,
                struct err *err)
{
    double **start, **end, length;
    int rows = n_stages > SVG_STAGES ? SVG_STAGES + 1 : n_stages;
    *height = rows * (ROW + GAP) + 30;
    if (!out)
        return 0;
    if (program_simulate(stages, n_stages, NULL, &start, &end, &length, err) < 0)
        return -1;
    double units = length > SVG_UNITS ? SVG_UNITS : length;
    fputs("<g font-family=\"sans-serif\">\n", out);
    for (int row = 0; row < rows; row++) {
        double y = row * (ROW + GAP);
        bool cut = rows < n_stages && row == SVG_STAGES / 2;
        int s = rows < n_stages && row > SVG_STAGES / 2 ? n_stages - rows + row : row;
        if (cut)
            fprintf(out,
                    "<text x=\"0\" y=\"%.1f\" font-size=\"12\" fill=\"#333\">... %d more stages"
                    "</text>\n",
                    y + ROW / 2.0 + 4, n_stages - SVG_STAGES);
        else
            draw_stage(&stages[s], start[s], end[s], y, width, units, out);
    }
    draw_legend(*height - 20, length, units, 3.0 * (double)stages[0].microbatches, out);
    fputs("</g>\n", out);
    program_times_free(start, n_stages);
    program_times_free(end, n_stages);
    if (ferror(out))
        return err_set(err, "the picture could not be written");
    return 0;
}
