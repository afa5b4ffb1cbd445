/* plan_svg.c - see plan_svg.h.
 *
 * The map is a grid: a row for each replica, a cell for each pipeline stage, and in a cell its
 * ranks. What does not fit is cut and counted, so that a plan of 16,384 ranks is a page too. */
#include "cli/plan_svg.h"

enum {
    WIDTH = 1200,
    MARGIN = 32,
    LABEL = 76,
    HEAD = 126,
    MAP_ROWS = 8,
    MAP_COLUMNS = 16,
    CELL_HEIGHT = 46,
    GAP = 6,
    MIN_RANK_WIDTH = 24 /* what four digits need */
};

/* Stages by hue, from blue to red; neighbours differ, text on them is dark. */
static void stage_colour(int stage, int stages, char *text, size_t size)
{
    int hue = stages > 1 ? 215 - stage * 190 / (stages - 1) : 215;
    snprintf(text, size, "hsl(%d,62%%,84%%)", hue < 0 ? hue + 360 : hue);
}

static void draw_cell(const struct plan *plan, int replica, int stage, double x, double y,
                      double width, FILE *out)
{
    const struct plan_parallel *p = &plan->parallel;
    int ranks = p->tensor * p->context * p->expert;
    int first = (replica * p->pipeline + stage) * ranks;
    char colour[40];
    stage_colour(stage, p->pipeline, colour, sizeof colour);
    fprintf(out,
            "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" rx=\"5\" fill=\"%s\"/>\n", x,
            y, width, CELL_HEIGHT, colour);
    double each = (width - 8) / ranks;
    if (each < MIN_RANK_WIDTH) {
        fprintf(
            out,
            "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" font-size=\"11\">%d</text>\n"
            "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" font-size=\"11\">to %d</text>\n",
            x + width / 2, y + 20, first, x + width / 2, y + 35, first + ranks - 1);
        return;
    }
    for (int i = 0; i < ranks; i++)
        fprintf(out,
                "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" rx=\"3\" fill=\"#fff\" "
                "fill-opacity=\"0.65\"/>"
                "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" font-size=\"12\">%d</text>\n",
                x + 5 + i * each, y + 5, each - 2, CELL_HEIGHT - 10, x + 4 + (i + 0.5) * each,
                y + CELL_HEIGHT / 2.0 + 4, first + i);
}

/* The grid's columns: stages, with a mark where some are left out. */
struct grid {
    int rows, columns;
    double top, cell;
};

static struct grid grid_of(const struct plan *plan)
{
    struct grid g;
    g.rows = plan->parallel.data > MAP_ROWS ? MAP_ROWS : plan->parallel.data;
    g.columns = plan->parallel.pipeline > MAP_COLUMNS ? MAP_COLUMNS : plan->parallel.pipeline;
    g.top = HEAD + 56;
    g.cell = (WIDTH - 2.0 * MARGIN - LABEL) / g.columns - GAP;
    return g;
}

static double grid_bottom(const struct plan *plan, const struct grid *g)
{
    bool cut = g->rows < plan->parallel.data || g->columns < plan->parallel.pipeline;
    return g->top + g->rows * (CELL_HEIGHT + GAP) + (cut ? 24 : 0);
}

static void draw_map(const struct plan *plan, const struct grid *g, FILE *out)
{
    const struct plan_parallel *p = &plan->parallel;
    fprintf(out, "<text x=\"%d\" y=\"%d\" font-size=\"16\" font-weight=\"bold\">Ranks</text>\n",
            MARGIN, HEAD + 16);
    for (int s = 0; s < g->columns; s++) {
        int64_t first, count;
        plan_stage_layers(plan, s, &first, &count);
        fprintf(out,
                "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" font-size=\"12\">stage %d"
                "</text>\n<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" font-size=\"11\" "
                "fill=\"#667\">%lld-%lld</text>\n",
                MARGIN + LABEL + s * (g->cell + GAP) + g->cell / 2, g->top - 20, s,
                MARGIN + LABEL + s * (g->cell + GAP) + g->cell / 2, g->top - 6, (long long)first,
                (long long)(first + count - 1));
    }
    fprintf(out, "<text x=\"%d\" y=\"%.1f\" font-size=\"11\" fill=\"#667\">layers</text>\n", MARGIN,
            g->top - 6);
    for (int d = 0; d < g->rows; d++) {
        double y = g->top + d * (CELL_HEIGHT + GAP);
        fprintf(out, "<text x=\"%d\" y=\"%.1f\" font-size=\"12\">replica %d</text>\n", MARGIN,
                y + CELL_HEIGHT / 2.0 + 4, d);
        for (int s = 0; s < g->columns; s++)
            draw_cell(plan, d, s, MARGIN + LABEL + s * (g->cell + GAP), y, g->cell, out);
    }
    if (g->rows < p->data || g->columns < p->pipeline)
        fprintf(out,
                "<text x=\"%d\" y=\"%.1f\" font-size=\"12\" fill=\"#667\">%d of %d replicas and %d "
                "of %d stages are shown; a replica is %d ranks</text>\n",
                MARGIN + LABEL, grid_bottom(plan, g) - 10, g->rows, p->data, g->columns,
                p->pipeline, plan->world / p->data);
}

static void draw_head(const struct plan *plan, FILE *out)
{
    const struct plan_parallel *p = &plan->parallel;
    double tokens = (double)plan->training.global_batch * (double)plan->training.sequence;
    double most = 0;
    for (int s = 0; s < p->pipeline; s++) {
        struct plan_memory m = plan_memory(plan, s);
        double all = m.weights + m.gradients + m.optimizer + m.activations;
        most = all > most ? all : most;
    }
    bool large = plan->parameters >= 1000000000, big = most >= 1024.0 * 1024 * 1024;
    fprintf(out,
            "<text x=\"%d\" y=\"50\" font-size=\"24\" font-weight=\"bold\">%s</text>\n"
            "<text x=\"%d\" y=\"76\" font-size=\"14\" fill=\"#445\">%.2f %s parameters, %d ranks = "
            "tensor %d x context %d x expert %d x pipeline %d x data %d</text>\n",
            MARGIN, plan->name, MARGIN, (double)plan->parameters / (large ? 1e9 : 1e6),
            large ? "billion" : "million", plan->world, p->tensor, p->context, p->expert,
            p->pipeline, p->data);
    fprintf(
        out,
        "<text x=\"%d\" y=\"98\" font-size=\"14\" fill=\"#445\">%.3g million tokens a step in "
        "%lld%s "
        "microbatches a replica, %.3g FLOPs a token, about %.1f %s on the fullest rank</text>\n",
        MARGIN, tokens / 1e6, (long long)plan->accumulation, plan->extra ? " or one more" : "",
        plan_flops_per_token(plan), most / (big ? 1073741824.0 : 1048576.0), big ? "GiB" : "MiB");
}

int plan_svg(const struct plan *plan, const struct program *stages, FILE *out, struct err *err)
{
    struct grid grid = grid_of(plan);
    double schedule, top = grid_bottom(plan, &grid) + 40;
    if (program_svg(stages, plan->parallel.pipeline, WIDTH - 2 * MARGIN, &schedule, NULL, err) < 0)
        return -1;
    double height = top + schedule + MARGIN;
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%.0f\" "
            "viewBox=\"0 0 %d %.0f\" font-family=\"sans-serif\" fill=\"#223\">\n"
            "<title>%s</title>\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
            WIDTH, height, WIDTH, height, plan->name);
    draw_head(plan, out);
    draw_map(plan, &grid, out);
    fprintf(out,
            "<text x=\"%d\" y=\"%.1f\" font-size=\"16\" font-weight=\"bold\">One step: %s</text>\n"
            "<g transform=\"translate(%d %.1f)\">\n",
            MARGIN, top - 14, plan->parallel.schedule == PLAN_GPIPE ? "GPipe" : "1F1B", MARGIN,
            top);
    int rc = program_svg(stages, plan->parallel.pipeline, WIDTH - 2 * MARGIN, &schedule, out, err);
    fputs("</g>\n</svg>\n", out);
    if (rc == 0 && ferror(out))
        rc = err_set(err, "the picture could not be written");
    return rc;
}
