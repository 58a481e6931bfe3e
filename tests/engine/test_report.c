/* SPDX-License-Identifier: Apache-2.0 */
/* Reports: progress lines, metrics, the timeline, curves. */
#include "tests/support/sl_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "base/file.h"
#include "engine/report/curve.h"
#include "engine/report/metrics.h"
#include "engine/report/progress.h"
#include "engine/report/timeline_svg.h"

enum {
    N_DEVICES = 2
};
#define SECOND 1000000000u

static const char *path_of(const char *name)
{
    static char path[512];

    (void)snprintf(path, sizeof(path), "%s/%s", sl_test_directory(), name);
    return path;
}

static char *content_of(const char *path)
{
    char *data = NULL;
    size_t n_bytes = 0;

    sl_assert_ok(sl_file_read(path, 1 << 24, &data, &n_bytes));
    assert_int_equal(strlen(data), n_bytes);
    return data;
}

static size_t count_of(const char *text, const char *part)
{
    size_t n = 0;

    while ((text = strstr(text, part)) != NULL) {
        n++;
        text += strlen(part);
    }
    return n;
}

/* ---- progress ---- */

typedef struct screen {
    FILE *stream;
    char *text;
    size_t n_bytes;
    sl_progress_t *progress;
} screen_t;

static void screen_init(screen_t *screen, sl_progress_params_t *params)
{
    memset(screen, 0, sizeof(*screen));
    screen->stream = open_memstream(&screen->text, &screen->n_bytes);
    assert_non_null(screen->stream);
    params->stream = screen->stream;
    sl_assert_ok(sl_progress_create(params, &screen->progress));
}

static void screen_cleanup(screen_t *screen)
{
    sl_progress_destroy(screen->progress);
    (void)fclose(screen->stream);
    free(screen->text);
}

/* A step of half a second that ends (step + 1) / 2 seconds after `start`. */
static void tell(screen_t *screen, uint32_t step, double loss, double bubble)
{
    const sl_progress_device_t devices[N_DEVICES] = {
        {"cpu:0", (size_t)1 << 30, (size_t)1 << 32},
        {"cpu:1", (size_t)3 << 30, (size_t)1 << 32}};
    const sl_progress_update_t update = {
        .step = step,
        .loss = loss,
        .n_units = 50.0,
        .step_us = 500000.0,
        .bubble = bubble,
        .devices = devices,
        .n_devices = N_DEVICES,
        .now_ns = 100u * (uint64_t)SECOND + (step + 1u) * (uint64_t)SECOND / 2};

    sl_progress_update(screen->progress, &update);
}

static void test_plain_progress(void **state)
{
    sl_progress_params_t params;
    screen_t screen;
    uint32_t step;

    (void)state;
    sl_progress_params_default(&params);
    params.style = SL_PROGRESS_PLAIN;
    params.n_steps = 25;
    screen_init(&screen, &params);
    for (step = 0; step < 25; step++) {
        tell(&screen, step, 2.0, 0.273);
    }
    /* step 1, then every 5 s, and the last */
    assert_string_equal(
        screen.text,
        "step 1/25  loss 2.0000  100 samples/s  bubble 27.3 %  mem cpu:0 1.00 "
        "GiB of 4.00 GiB, cpu:1 3.00 GiB of 4.00 GiB  eta 0:12\n"
        "step 11/25  loss 2.0000  100 samples/s  bubble 27.3 %  mem cpu:0 "
        "1.00 GiB of 4.00 GiB, cpu:1 3.00 GiB of 4.00 GiB  eta 0:07\n"
        "step 21/25  loss 2.0000  100 samples/s  bubble 27.3 %  mem cpu:0 "
        "1.00 GiB of 4.00 GiB, cpu:1 3.00 GiB of 4.00 GiB  eta 0:02\n"
        "step 25/25  loss 2.0000  100 samples/s  bubble 27.3 %  mem cpu:0 "
        "1.00 GiB of 4.00 GiB, cpu:1 3.00 GiB of 4.00 GiB  took 0:13\n");
    screen_cleanup(&screen);
}

static void test_plain_progress_by_steps(void **state)
{
    sl_progress_params_t params;
    screen_t screen;
    uint32_t step;

    (void)state;
    sl_progress_params_default(&params);
    params.style = SL_PROGRESS_PLAIN;
    params.first_step = 10;
    params.n_steps = 21;
    params.period_s = 1e9;
    params.every = 4;
    params.unit = "tokens";
    screen_init(&screen, &params);
    for (step = 10; step < 21; step++) {
        tell(&screen, step, (double)NAN, (double)NAN);
    }
    assert_int_equal(count_of(screen.text, "\n"), 4);
    sl_assert_contains(screen.text, "step 11/21  loss nan  100 tokens/s  mem");
    sl_assert_contains(screen.text, "\nstep 15/21");
    sl_assert_contains(screen.text, "\nstep 19/21");
    sl_assert_contains(screen.text, "\nstep 21/21");
    assert_int_equal(count_of(screen.text, "bubble"), 0);
    /* 5 of 11 steps of this run took 2.5 s */
    sl_assert_contains(screen.text, "eta 0:03\n");
    screen_cleanup(&screen);
}

static void test_rewritten_progress_never_wraps(void **state)
{
    int width;

    (void)state;
    for (width = 1; width <= 200; width++) {
        sl_progress_params_t params;
        screen_t screen;
        size_t n_visible;

        sl_progress_params_default(&params);
        params.style = SL_PROGRESS_REWRITTEN;
        params.width = width;
        params.n_steps = 1000;
        screen_init(&screen, &params);
        tell(&screen, 3, 1.25, 0.5);
        assert_int_equal(screen.text[0], '\r');
        assert_memory_equal(screen.text + screen.n_bytes - 3, "\033[K", 3);
        n_visible = screen.n_bytes - 4;
        assert_true(n_visible < (size_t)width);
        assert_int_equal(count_of(screen.text, "\n"), 0);
        if (width == 30) {
            assert_string_equal(screen.text,
                                "\rstep 4/1000  loss 1.2500\033[K");
        }
        if (width == 100) { /* the fullest device stands for all */
            sl_assert_contains(screen.text, "  mem 3.00 GiB of 4.00 GiB  eta");
        }
        if (width == 200) {
            sl_assert_contains(screen.text, "mem cpu:0 1.00 GiB of 4.00 GiB");
        }
        screen_cleanup(&screen);
    }
}

static void test_rewritten_progress_clears(void **state)
{
    sl_progress_params_t params;
    screen_t screen;

    (void)state;
    sl_progress_params_default(&params);
    params.style = SL_PROGRESS_REWRITTEN;
    params.width = 26;
    params.n_steps = 1000;
    params.period_s = 1e9;
    screen_init(&screen, &params);
    sl_progress_clear(NULL);
    sl_progress_clear(screen.progress); /* nothing there yet */
    tell(&screen, 0, 1.0, 0.5);
    tell(&screen, 1, 1.0, 0.5); /* too early */
    sl_progress_clear(screen.progress);
    tell(&screen, 2, 1.0, 0.5); /* again, at once */
    sl_progress_destroy(screen.progress);
    screen.progress = NULL;
    assert_string_equal(screen.text, "\rstep 1/1000  loss 1.0000\033[K\r\033[K"
                                     "\rstep 3/1000  loss 1.0000\033[K\n");
    screen_cleanup(&screen);
}

static void test_progress_smooths(void **state)
{
    sl_progress_params_t params;
    const char *last;
    screen_t screen;
    uint32_t step;
    double loss;

    (void)state;
    sl_progress_params_default(&params);
    params.style = SL_PROGRESS_PLAIN;
    params.n_steps = 200;
    params.period_s = 0.0;
    screen_init(&screen, &params);
    for (step = 0; step < 200; step++) {
        tell(&screen, step, step % 2 == 0 ? 1.0 : 3.0, 0.5);
    }
    sl_assert_contains(screen.text, "step 1/200  loss 1.0000");
    last = strstr(screen.text, "step 200/200  loss ");
    assert_non_null(last);
    loss = strtod(last + strlen("step 200/200  loss "), NULL);
    assert_true(fabs(loss - 2.0) < 0.06);
    screen_cleanup(&screen);
}

static void test_times(void **state)
{
    static const struct {
        double seconds;
        const char *text;
    } cases[] = {{0.0, "0:00"},     {59.4, "0:59"},      {61.0, "1:01"},
                 {3599.0, "59:59"}, {3600.0, "1:00:00"}, {90061.0, "25:01:01"},
                 {-1.0, "?"},       {(double)NAN, "?"},  {1e300, "?"}};
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        char text[40];

        sl_progress_format_time(cases[i].seconds, text, sizeof(text));
        assert_string_equal(text, cases[i].text);
    }
}

/* ---- metrics ---- */

static sl_metrics_step_t metrics_step(uint32_t step, double loss)
{
    static const sl_metrics_device_t devices[N_DEVICES] = {
        {"cpu:0", 100, 200, 300, 0.75}, {"cpu:1", 1, 2, SIZE_MAX, (double)NAN}};
    const sl_metrics_step_t record = {.step = step,
                                      .loss = loss,
                                      .accuracy = 0.5,
                                      .learning_rate = 0.1,
                                      .gradient_norm = 2.5,
                                      .step_ms = 12.5,
                                      .units_per_s = 640.0,
                                      .unit = "samples",
                                      .bubble = 0.25,
                                      .devices = devices,
                                      .n_devices = N_DEVICES};

    return record;
}

static void write_metrics(const char *path, int append, uint32_t first,
                          uint32_t end)
{
    sl_metrics_t *metrics = NULL;
    uint32_t step;

    sl_assert_ok(sl_metrics_open(path, append, &metrics));
    for (step = first; step < end; step++) {
        const sl_metrics_step_t record =
            metrics_step(step, step == 1 ? (double)INFINITY : 2.25);

        sl_metrics_write(metrics, &record);
    }
    sl_assert_ok(sl_metrics_close(metrics));
}

static void test_metrics(void **state)
{
    const char *path = path_of("metrics.jsonl");
    char *text;
    size_t end;

    (void)state;
    write_metrics(path, 0, 0, 2);
    text = content_of(path);
    assert_int_equal(count_of(text, "\n"), 2);
    end = strcspn(text, "\n");
    text[end] = '\0';
    assert_string_equal(
        text, "{\"step\":0,\"loss\":2.25,\"accuracy\":0.5,\"lr\":0.1,"
              "\"gradient_norm\":2.5,\"step_ms\":12.5,\"samples_per_s\":640.0,"
              "\"bubble\":0.25,\"devices\":[{\"name\":\"cpu:0\","
              "\"used_bytes\":100,\"peak_bytes\":200,\"limit_bytes\":300,"
              "\"busy\":0.75},{\"name\":\"cpu:1\",\"used_bytes\":1,"
              "\"peak_bytes\":2,\"limit_bytes\":null,\"busy\":null}]}");
    sl_assert_contains(text + end + 1, "\"step\":1,\"loss\":null,");
    free(text);
    /* without append it starts anew */
    write_metrics(path, 0, 5, 6);
    text = content_of(path);
    assert_int_equal(count_of(text, "\n"), 1);
    free(text);
}

static void test_loss_scale(void **state)
{
    const char *path = path_of("scale.jsonl");
    sl_metrics_step_t record = metrics_step(0, 2.0);
    const sl_progress_update_t update = {.loss = 2.0,
                                         .n_units = 50.0,
                                         .step_us = 500000.0,
                                         .bubble = (double)NAN,
                                         .loss_scale = 32768.0,
                                         .n_skipped = 1,
                                         .now_ns = SECOND};
    sl_metrics_t *metrics = NULL;
    sl_progress_params_t params;
    screen_t screen;
    char *text;

    (void)state;
    record.loss_scale = 32768.0;
    record.n_skipped = 1;
    sl_assert_ok(sl_metrics_open(path, 0, &metrics));
    sl_metrics_write(metrics, &record);
    record.loss_scale = 0.0;
    record.compare_ms = 0.5;
    sl_metrics_write(metrics, &record);
    sl_assert_ok(sl_metrics_close(metrics));
    text = content_of(path);
    sl_assert_contains(text, "\"loss_scale\":32768.0,\"skipped_steps\":1}");
    assert_int_equal(count_of(text, "loss_scale"), 1);
    assert_int_equal(count_of(text, "\"skipped_steps\":1"), 2);
    sl_assert_contains(text, "\"skipped_steps\":1,\"compare_ms\":0.5}");
    assert_int_equal(count_of(text, "compare_ms"), 1);
    free(text);
    sl_progress_params_default(&params);
    params.style = SL_PROGRESS_PLAIN;
    params.n_steps = 9;
    screen_init(&screen, &params);
    sl_progress_update(screen.progress, &update);
    sl_assert_contains(screen.text,
                       "100 samples/s  scale 32768  skipped 1  eta");
    screen_cleanup(&screen);
}

static void test_metrics_append(void **state)
{
    const char *path = path_of("metrics.jsonl");
    char *text, *line;
    FILE *stream;
    int i;

    (void)state;
    write_metrics(path, 1, 0, 2); /* no file yet */
    /* a crash in the middle of a line, longer than what is read at once */
    stream = fopen(path, "ab");
    (void)fputs("{\"step\":2,\"lo", stream);
    for (i = 0; i < 10000; i++) {
        (void)fputc('x', stream);
    }
    assert_int_equal(fclose(stream), 0);
    write_metrics(path, 1, 2, 4);
    text = content_of(path);
    assert_int_equal(count_of(text, "\n"), 4);
    for (line = strtok(text, "\n"), i = 0; line != NULL;
         line = strtok(NULL, "\n"), i++) {
        json_t *object = json_loads(line, 0, NULL);

        assert_int_equal(json_integer_value(json_object_get(object, "step")),
                         i);
        json_decref(object);
    }
    assert_int_equal(i, 4);
    free(text);
}

static void test_metrics_failures(void **state)
{
    const sl_metrics_step_t record = metrics_step(7, 1.0);
    sl_metrics_t *metrics = NULL;

    (void)state;
    sl_assert_status(sl_metrics_open(path_of("no/such/file"), 0, &metrics),
                     SL_ERR_IO);
    sl_assert_contains(sl_last_error(), "no/such/file for writing: No such");
    assert_null(metrics);
    sl_assert_ok(sl_metrics_close(NULL));
    if (access("/dev/full", W_OK) != 0) {
        skip();
    }
    sl_assert_ok(sl_metrics_open("/dev/full", 0, &metrics));
    sl_metrics_write(metrics, &record);
    sl_metrics_write(metrics, &record);
    sl_assert_status(sl_metrics_close(metrics), SL_ERR_IO);
    sl_assert_contains(sl_last_error(),
                       "writing /dev/full failed at step 7: No space left");
}

/* ---- timeline ---- */

static sl_trace_event_t event(int stage, sl_instruction_kind_t kind,
                              int micro_batch, uint64_t start_us,
                              uint64_t end_us)
{
    const sl_trace_event_t made = {stage,
                                   {kind, micro_batch},
                                   1000000000 + start_us * 1000,
                                   1000000000 + end_us * 1000,
                                   (end_us - start_us) * 1000};

    return made;
}

/* Fails on tags that do not match, and on bare '&' and '<'. */
static void assert_well_formed(const char *text)
{
    char names[16][32];
    int depth = 0;
    const char *c;

    for (c = text; *c != '\0'; c++) {
        if (*c == '&') {
            assert_true(
                strncmp(c, "&amp;", 5) == 0 || strncmp(c, "&lt;", 4) == 0 ||
                strncmp(c, "&gt;", 4) == 0 || strncmp(c, "&quot;", 6) == 0);
        } else if (strncmp(c, "</", 2) == 0) {
            size_t n = strcspn(c + 2, ">");

            depth--;
            assert_true(depth >= 0 && strlen(names[depth]) == n);
            assert_memory_equal(c + 2, names[depth], n);
        } else if (*c == '<' && c[1] != '?') {
            const size_t n = strcspn(c + 1, " >/"), end = strcspn(c, ">");

            assert_int_equal(c[end], '>');
            if (c[end - 1] != '/') {
                assert_true(depth < 16 && n < 32);
                memcpy(names[depth], c + 1, n);
                names[depth++][n] = '\0';
            }
        }
    }
    assert_int_equal(depth, 0);
}

static void test_timeline(void **state)
{
    const char *const names[] = {"cpu:0 <&>", "a name that is much too long "
                                              "to be shown beside a row"};
    const sl_trace_event_t events[] = {
        event(0, SL_INSTRUCTION_FORWARD, 0, 0, 1000),
        event(0, SL_INSTRUCTION_SEND_FORWARD, 0, 1000, 1100),
        event(1, SL_INSTRUCTION_RECV_FORWARD, 0, 0, 1100),
        event(1, SL_INSTRUCTION_FORWARD, 0, 1100, 2100),
        event(1, SL_INSTRUCTION_RECOMPUTE, 0, 2100, 3000),
        event(1, SL_INSTRUCTION_BACKWARD, 0, 3000, 5000),
        event(0, SL_INSTRUCTION_BACKWARD, 0, 5000, 7000),
        event(0, SL_INSTRUCTION_UPDATE, -1, 7000, 8000),
        event(1, SL_INSTRUCTION_UPDATE, -1, 5000, 6000)};
    sl_timeline_t timeline = {.events = events,
                              .n_events = sizeof(events) / sizeof(*events),
                              .n_stages = 2,
                              .n_micro_batches = 1,
                              .schedule = "gpipe",
                              .row_names = names,
                              .bubble = (double)NAN};
    const char *path = path_of("timeline.svg");
    char *text;

    (void)state;
    /* 1 + 2 + 1 and 1 + 0.9 + 2 + 1 of 2 x 8 ms */
    assert_true(fabs(sl_timeline_bubble(&timeline) - (1.0 - 8.9 / 16.0)) <
                1e-12);
    sl_assert_ok(sl_timeline_svg_write(path, &timeline));
    text = content_of(path);
    assert_well_formed(text);
    sl_assert_contains(
        text, "gpipe, 2 stages, 1 micro-batch: step 8 ms, bubble 44.4 %");
    sl_assert_contains(text, "stage 0, cpu:0 &lt;&amp;&gt;");
    sl_assert_contains(text, "stage 1, a name that is much too ...<");
    sl_assert_contains(text, "<title>B0: 2 ms, from 5 ms</title>");
    sl_assert_contains(text, "<title>U: 1 ms, from 7 ms</title>");
    assert_int_equal(count_of(text, "<title>"), timeline.n_events);
    sl_assert_contains(text, ">recomputation<");
    free(text);

    timeline.bubble = 0.125;
    timeline.row_names = NULL;
    timeline.n_events = 1;
    sl_assert_ok(sl_timeline_svg_write(path, &timeline));
    text = content_of(path);
    sl_assert_contains(text, "bubble 12.5 %");
    /* the legend has only what is there */
    assert_int_equal(count_of(text, ">backward<"), 0);
    free(text);
}

static void test_bad_timelines(void **state)
{
    sl_trace_event_t one = event(0, SL_INSTRUCTION_FORWARD, 0, 5, 2);
    sl_timeline_t timeline = {.events = &one,
                              .n_events = 1,
                              .n_stages = 1,
                              .n_micro_batches = 1,
                              .schedule = "1f1b",
                              .bubble = (double)NAN};
    const char *path = path_of("timeline.svg");

    (void)state;
    sl_assert_status(sl_timeline_svg_write(path, &timeline),
                     SL_ERR_INVALID_ARG);
    sl_assert_contains(sl_last_error(), "there are no events");
    timeline.n_events = 0;
    assert_true(sl_timeline_bubble(&timeline) == 0.0);
    sl_assert_status(sl_timeline_svg_write(path, &timeline),
                     SL_ERR_INVALID_ARG);
    timeline.n_events = 1;
    one = event(1, SL_INSTRUCTION_FORWARD, 0, 1, 2);
    sl_assert_status(sl_timeline_svg_write(path, &timeline),
                     SL_ERR_INVALID_ARG);
    one = event(0, SL_INSTRUCTION_FORWARD, 0, 2, 2); /* takes no time */
    sl_assert_ok(sl_timeline_svg_write(path, &timeline));
    sl_assert_status(sl_timeline_svg_write(path_of("no/such"), &timeline),
                     SL_ERR_IO);
}

/* ---- curves ---- */

static void test_text_curve(void **state)
{
    const double y[] = {4.0, 3.0, 2.0, (double)NAN, 0.0};
    const sl_curve_series_t series = {"loss", NULL, y, 5};
    sl_curve_text_params_t params = {13, 5, SL_CURVE_ASCII};
    char *text = NULL;

    (void)state;
    sl_assert_ok(sl_curve_text(&series, &params, &text));
    assert_string_equal(text, "   loss\n"
                              "4 +*\n"
                              "  | ***\n"
                              "2 +    **\n"
                              "  |      **\n"
                              "0 +        **\n"
                              "  +----------\n"
                              "   0        4\n");
    free(text);
    params.charset = SL_CURVE_BRAILLE;
    sl_assert_ok(sl_curve_text(&series, &params, &text));
    sl_assert_contains(text, "4 ┤⠑⢄\n");
    sl_assert_contains(text, "  └──────────\n");
    free(text);
}

static void test_text_curve_corners(void **state)
{
    const double nan = (double)NAN, one = -1e308, two[] = {-1e308, 1.7e308};
    sl_curve_series_t series = {"loss", NULL, &nan, 1};
    const sl_curve_text_params_t sizes[] = {{0, 0, SL_CURVE_AUTO},
                                            {1, 1, SL_CURVE_BRAILLE},
                                            {-5, -5, SL_CURVE_AUTO},
                                            {100000, 100000, SL_CURVE_ASCII}};
    char *text = NULL;
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        series.y = &nan;
        series.n = 1;
        sl_assert_ok(sl_curve_text(&series, &sizes[i], &text));
        assert_string_equal(text, "loss: no finite values to draw\n");
        free(text);
        series.y = &one;
        sl_assert_ok(sl_curve_text(&series, &sizes[i], &text));
        sl_assert_contains(text, "-1e+308");
        free(text);
        series.y = two;
        series.n = 2;
        sl_assert_ok(sl_curve_text(&series, &sizes[i], &text));
        sl_assert_contains(text, "1.7e+308");
        free(text);
    }
    series.n = 0;
    sl_assert_ok(sl_curve_text(&series, &sizes[0], &text));
    free(text);
}

static void test_locales(void **state)
{
    static const struct {
        const char *all, *ctype, *lang;
        int is_utf8;
    } cases[] = {{"", "", "en_US.UTF-8", 1},
                 {"", "", "C.utf8", 1},
                 {"C", "", "en_US.UTF-8", 0},
                 {"", "de_DE.UTF-8@euro", "C", 1},
                 {"", "", "", 0},
                 {"", "", "en_US.ISO-8859-1", 0}};
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        (void)setenv("LC_ALL", cases[i].all, 1);
        (void)setenv("LC_CTYPE", cases[i].ctype, 1);
        (void)setenv("LANG", cases[i].lang, 1);
        assert_int_equal(sl_curve_is_utf8(), cases[i].is_utf8);
    }
}

static void test_svg_curve(void **state)
{
    enum {
        N = 3000
    };
    static double y[N];
    const double valid_x[] = {0.0, 1000.0, 2999.0}, valid_y[] = {3.0, 1.5, 1.0};
    const sl_curve_series_t series[] = {{"training & loss", NULL, y, N},
                                        {"validation", valid_x, valid_y, 3}};
    const double nan = (double)NAN, huge = 1e300;
    sl_curve_series_t bad = {"bad", NULL, &nan, 1};
    const char *path = path_of("curve.svg");
    char *text;
    size_t i;

    (void)state;
    for (i = 0; i < N; i++) {
        y[i] = 3.0 * exp(-(double)i / 500.0) + (i % 2 == 0 ? 0.1 : 0.0);
    }
    y[7] = (double)INFINITY;
    sl_assert_ok(sl_curve_svg_write(path, "Loss <1>", series, 2));
    text = content_of(path);
    assert_well_formed(text);
    sl_assert_contains(text, "Loss &lt;1&gt;");
    sl_assert_contains(text, "training &amp; loss");
    assert_int_equal(count_of(text, "<polyline"), 2);
    assert_int_equal(count_of(text, "<polygon"), 1);
    assert_int_equal(count_of(text, "<circle"), 3);
    assert_int_equal(count_of(text, "nan") + count_of(text, "inf"), 0);
    free(text);
    sl_assert_status(sl_curve_svg_write(path, "x", &bad, 1),
                     SL_ERR_INVALID_ARG);
    bad.y = &huge;
    sl_assert_status(sl_curve_svg_write(path, "x", &bad, 1),
                     SL_ERR_INVALID_ARG);
    bad.y = valid_y; /* one value: both ranges are empty */
    sl_assert_ok(sl_curve_svg_write(path, "x", &bad, 1));
    sl_assert_status(sl_curve_svg_write(path, "x", series, 9),
                     SL_ERR_INVALID_ARG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(test_plain_progress),
        sl_unit_test(test_plain_progress_by_steps),
        sl_unit_test(test_rewritten_progress_never_wraps),
        sl_unit_test(test_rewritten_progress_clears),
        sl_unit_test(test_progress_smooths),
        sl_unit_test(test_times),
        sl_unit_test(test_metrics),
        sl_unit_test(test_loss_scale),
        sl_unit_test(test_metrics_append),
        sl_unit_test(test_metrics_failures),
        sl_unit_test(test_timeline),
        sl_unit_test(test_bad_timelines),
        sl_unit_test(test_text_curve),
        sl_unit_test(test_text_curve_corners),
        sl_unit_test(test_locales),
        sl_unit_test(test_svg_curve),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
