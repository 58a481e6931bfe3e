/* SPDX-License-Identifier: Apache-2.0 */
/* How tensors go between the ranks of a job: all of them the same way. */
#include "base/log.h"
#include "engine/nccl/choose.h"
#include "engine/parallel/edges.h"
#include "engine/world.h"

/* Devices that use host memory leave no choice. */
static sl_status_t choose_host(sl_engine_t *engine)
{
    const sl_transport_t asked = engine->params.transport;
    sl_status_t status = SL_OK;

    if (asked == SL_TRANSPORT_CUDA_AWARE || asked == SL_TRANSPORT_NCCL) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "transport '%s' is for cuda devices, not for %s",
                sl_transport_name(asked),
                engine->params.devices->devices[0].name);
    }
    engine->transport = asked;
out:
    return status;
}

/* Kinds that are not built have no devices. */
static sl_status_t (*const choices[SL_DEVICE_N_KINDS])(sl_engine_t *engine) = {
    [SL_DEVICE_KIND_CPU] = choose_host,
#if SL_HAVE_CUDA
    [SL_DEVICE_KIND_CUDA] = sl_nccl_choose,
#endif
};

/* What a rehearsal counts: the way with the most device memory of those that
 * may be chosen. */
static sl_transport_t rehearsed(const sl_engine_t *engine)
{
    const int is_cuda =
        engine->params.devices->devices[0].kind == SL_DEVICE_KIND_CUDA;

    return is_cuda && engine->params.transport == SL_TRANSPORT_AUTO
               ? SL_TRANSPORT_CUDA_AWARE
               : engine->params.transport;
}

sl_status_t sl_transport_open(sl_engine_t *engine)
{
    if (engine->dry != NULL) {
        engine->transport = rehearsed(engine);
        return SL_OK;
    }
    return engine->params.world == NULL
               ? SL_OK
               : choices[engine->params.devices->devices[0].kind](engine);
}

const char *sl_engine_transport(const sl_engine_t *engine)
{
    const int is_host =
        engine->params.devices->devices[0].kind == SL_DEVICE_KIND_CPU &&
        engine->transport == SL_TRANSPORT_AUTO;

    if (engine->params.world == NULL) {
        return "none";
    }
    return is_host ? "host" : sl_transport_name(engine->transport);
}

#if SL_HAVE_CUDA

void sl_transport_close(sl_engine_t *engine)
{
    sl_nccl_destroy(engine->nccl);
    engine->nccl = NULL;
}

void sl_transport_pause(sl_engine_t *engine)
{
    sl_nccl_pause(engine->nccl);
}

sl_status_t sl_transport_recover(sl_engine_t *engine, sl_status_t status)
{
    if (status < 0) {
        sl_nccl_lose(engine->nccl);
        return status;
    }
    return sl_nccl_recover(engine->nccl);
}

#else

void sl_transport_close(sl_engine_t *engine)
{
    (void)engine;
}

void sl_transport_pause(sl_engine_t *engine)
{
    (void)engine;
}

sl_status_t sl_transport_recover(sl_engine_t *engine, sl_status_t status)
{
    (void)engine;
    return status;
}

#endif
