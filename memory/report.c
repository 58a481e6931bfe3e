/* SPDX-License-Identifier: Apache-2.0 */
/* What the allocator tells about itself. */
#include <string.h>

#include "memory/universal.h"

void sl_mem_stats(const sl_mem_t *mem, sl_mem_stats_t *stats_p)
{
    (void)pthread_mutex_lock(mem->lock);
    memset(stats_p, 0, sizeof(*stats_p));
    memcpy(stats_p->classes, mem->classes, sizeof(mem->classes));
    stats_p->used_bytes = mem->device.used_bytes;
    stats_p->peak_bytes = mem->device.peak_used_bytes;
    stats_p->held_bytes = mem->device.held_bytes;
    stats_p->peak_held_bytes = mem->device.peak_held_bytes;
    stats_p->limit_bytes = mem->device.limit_bytes;
    stats_p->unit_bytes = mem->device.unit_bytes;
    stats_p->host_used_bytes = mem->host.used_bytes;
    stats_p->host_peak_bytes = mem->host.peak_used_bytes;
    stats_p->host_held_bytes = mem->host.held_bytes;
    stats_p->largest_free_bytes = sl_mem_pool_largest_free(&mem->device);
    stats_p->n_region_allocs =
        mem->device.n_region_allocs + mem->host.n_region_allocs;
    stats_p->trimmed_bytes =
        mem->device.trimmed_bytes + mem->host.trimmed_bytes;
    stats_p->n_live_blocks = mem->n_live;
    stats_p->asked_limit_bytes = mem->target_bytes;
    stats_p->pinned_bytes = mem->pinned_bytes;
    stats_p->host_limit_bytes = mem->host.limit_bytes;
    stats_p->total_peak_bytes = mem->total_peak_bytes;
    (void)pthread_mutex_unlock(mem->lock);
}

/* One region's blocks into the survey. */
static void survey_region(const sl_mem_region_t *region,
                          sl_mem_survey_t *survey)
{
    size_t bytes[SL_MEM_N_CLASSES] = {0};
    const sl_mem_chunk_t *chunk;
    size_t i;

    for (chunk = region->first; chunk != NULL; chunk = chunk->next) {
        if (sl_mem_chunk_is_used(chunk)) {
            const sl_mem_record_t *record = chunk->owner;

            bytes[record->mem_class] += chunk->bytes;
        } else {
            survey->n_free_blocks += chunk->owner == NULL;
        }
    }
    for (i = 0; i < SL_MEM_N_CLASSES; i++) {
        if (bytes[i] > 0) {
            survey->classes[i].device_bytes += bytes[i];
            survey->classes[i].region_bytes += sl_mem_region_held(region);
        }
    }
    survey->n_regions++;
}

static double lost_share(size_t useful, size_t all)
{
    return all == 0 ? 0.0 : 1.0 - (double)useful / (double)all;
}

void sl_mem_survey(const sl_mem_t *mem, sl_mem_survey_t *survey_p)
{
    const sl_mem_region_t *region;
    size_t i;

    memset(survey_p, 0, sizeof(*survey_p));
    (void)pthread_mutex_lock(mem->lock);
    for (region = mem->device.regions; region != NULL; region = region->next) {
        survey_region(region, survey_p);
    }
    for (i = 0; i < SL_MEM_N_CLASSES; i++) {
        sl_mem_class_survey_t *own = &survey_p->classes[i];

        own->fragmentation = lost_share(own->device_bytes, own->region_bytes);
    }
    survey_p->fragmentation =
        lost_share(sl_mem_pool_largest_free(&mem->device),
                   mem->device.held_bytes - mem->device.used_bytes);
    survey_p->touched_bytes = sl_mem_pool_touched(&mem->device);
    survey_p->host_touched_bytes = sl_mem_pool_touched(&mem->host);
    (void)pthread_mutex_unlock(mem->lock);
}
