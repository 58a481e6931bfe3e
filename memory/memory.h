/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file memory.h
 * The universal allocator: a device pool with an adjustable limit, and a
 * host pool behind it (AntMan, OSDI'20, section 4.1).
 *
 * Every byte of a device's memory is asked of its sl_mem_t. A block is
 * handed out as a handle and not as a bare pointer, because at a mini-batch
 * boundary the allocator may move a block between device and host memory
 * when its limit changes: read `block->ptr` when an op is submitted, and
 * never keep the pointer across sl_mem_boundary(). Contents survive a move.
 *
 * Reuse is stream ordered: a device runs its ops in order, so a block may be
 * released as soon as its last op is submitted: the next owner's ops come
 * after it in the same queue. On a CUDA device that queue is one stream; who
 * uses a block on another stream (a transport's copy) lets the device's stream
 * wait for that work's event before the block is released. Three things are
 * not ordered by the queue, and each waits for the ops submitted so far with
 * `quiesce` first: memory that goes back to the system (a region, or a part of
 * one), a block that moves at a boundary, and one that is about to be refused.
 * Copies of the allocator are done when it returns, so ops submitted later
 * find what they left.
 *
 * Overflow is zero copy: a block on the host is used there by the device's
 * ops, in place, until a boundary brings it back.
 *
 * Thread safety: every function may be called from any thread.
 */
#ifndef SL_MEMORY_MEMORY_H
#define SL_MEMORY_MEMORY_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

SL_BEGIN_DECLS

enum {
    SL_MEM_ALIGN_BYTES = 256
};

/** What a block is for; decides what leaves the device first: see
 *  sl_mem_class_cost(). */
#define SL_MEM_CLASS_MAP(X)                                                    \
    X(PERSISTENT, "persistent") /* parameters, gradients, moments */           \
    X(STASH, "stash")           /* kept from a forward to its backward */      \
    X(ACTIVATION, "activation") /* alive within one pass */                    \
    X(WORKSPACE, "workspace")   /* alive within one op */                      \
    X(COMM, "comm")             /* on its way between stages */

typedef enum sl_mem_class {
#define X(id, text) SL_MEM_CLASS_##id,
    SL_MEM_CLASS_MAP(X)
#undef X
    SL_MEM_N_CLASSES
} sl_mem_class_t;

SL_API const char *sl_mem_class_name(sl_mem_class_t mem_class);

/**
 * What a byte of the class costs on the host, in bytes moved per mini-batch
 * for each byte of the class's peak, with a mini-batch of four micro-batches
 * of a stage of eight layers: the order in which classes overflow, cheapest
 * first. Persistent comes last whatever the others cost.
 */
SL_API double sl_mem_class_cost(sl_mem_class_t mem_class);

typedef struct sl_mem sl_mem_t; /* opaque */

/**
 * A block: owned by the allocator, lent to the caller until sl_mem_release.
 * The fields are read only for the caller.
 */
typedef struct sl_mem_block {
    void *ptr;    /**< first byte, aligned to SL_MEM_ALIGN_BYTES; may change
                       at a boundary */
    size_t bytes; /**< as asked */
} sl_mem_block_t;

/**
 * Where a pool gets its regions from. The core copies the table, so a
 * shorter, older one reads as "not provided".
 */
typedef struct sl_mem_ops {
    size_t size;      /**< sizeof(sl_mem_ops_t) when compiled */
    const char *name; /**< short identifier: "host", "cuda" */

    /** A region of `bytes` (> 0), aligned to SL_MEM_ALIGN_BYTES at least.
     *  Refusal is normal flow: SL_ERR_NO_MEMORY, not logged. */
    sl_status_t (*alloc)(void *ctx, size_t bytes, void **ptr_p);
    /** Give a region from alloc() back. Never NULL. Cannot fail. */
    void (*release)(void *ctx, void *ptr, size_t bytes);

    /** (optional) Copy between two of these regions, or one of them and host
     *  memory; done on return. Default: memcpy. */
    sl_status_t (*copy)(void *ctx, void *to, const void *from, size_t bytes);

    /** (optional) Bytes of the region that take physical memory now. Default:
     *  all. May be slow. */
    size_t (*touched)(void *ctx, const void *ptr, size_t bytes);

    /** (optional) Regions are asked in whole multiples of this: what the
     *  device would round them to anyway. Default: SL_MEM_ALIGN_BYTES. */
    size_t (*unit)(void *ctx);

    /* (optional, all three or none) A region of which a part can do without
     * memory: the addresses stay, the contents of the part are lost. */
    /** Such parts of a region of `bytes` start at multiples of this and end
     *  at such or at the region's end; 0 = not of this region. */
    size_t (*piece)(void *ctx, size_t bytes);
    /** Give the memory of a part back; no op uses it. On failure it is as it
     *  was. */
    sl_status_t (*trim)(void *ctx, void *region, size_t offset, size_t bytes);
    /** Memory again for a part that was trimmed. Refusal as of alloc. */
    sl_status_t (*fill)(void *ctx, void *region, size_t offset, size_t bytes);

    /* (optional, both or none) Several copies that are waited for once.
     * Default: one after the other by copy. */
    /** As copy, but only begun: until wait() has returned, nobody may write
     *  `from` or use `to`. */
    sl_status_t (*copy_begin)(void *ctx, void *to, const void *from,
                              size_t bytes);
    /** Until all that were begun have ended. On failure nothing is known of
     *  what they wrote. */
    sl_status_t (*copy_wait)(void *ctx);
} sl_mem_ops_t;

/** Memory of CPU devices: regions mapped from the system. `ctx` of its
 *  functions is ignored. */
SL_API const sl_mem_ops_t *sl_mem_ops_host(void);

/** The host pool behind them: the same, and free pages of a region can be given
 *  back while the rest of it is in use. */
SL_API const sl_mem_ops_t *sl_mem_ops_host_pool(void);

/** Parameters. Start from sl_mem_params_default(). */
typedef struct sl_mem_params {
    const char *name;           /**< copied; for messages (default "mem") */
    const sl_mem_ops_t *device; /**< default: host memory */
    void *device_ctx;           /**< borrowed; passed to `device` */
    const sl_mem_ops_t *host;   /**< default: sl_mem_ops_host_pool() */
    void *host_ctx;             /**< borrowed; passed to `host` */
    size_t limit_bytes;         /**< of device memory held; SIZE_MAX = none
                                     (default). Also the device's capacity:
                                     a later limit is clamped to it. */
    size_t host_limit_bytes;    /**< of host regions held (default 0: no
                                     overflow to the host) */
    /** Wait until the ops submitted so far have run. Called before a region
     *  is given back inside a mini-batch, because such ops may still use
     *  released blocks, and before a block is refused; sometimes under the
     *  allocator's lock, so neither it nor an op may call the allocator.
     *  Default NULL: no op outlives the release of its blocks. */
    void (*quiesce)(void *ctx);
    void *quiesce_ctx; /**< borrowed; passed to `quiesce` */
} sl_mem_params_t;

SL_API void sl_mem_params_default(sl_mem_params_t *params);

/** Use of one class. Peaks are since the last sl_mem_boundary(). */
typedef struct sl_mem_class_stats {
    size_t used_bytes;     /**< in blocks now, as rounded */
    size_t peak_bytes;     /**< most at once in this mini-batch */
    size_t host_bytes;     /**< of used_bytes, on the host */
    uint64_t n_allocs;     /**< since creation */
    uint64_t n_spills;     /**< blocks that went to the host */
    uint64_t spill_bytes;  /**< their sum */
    uint64_t n_returns;    /**< blocks that came back to the device */
    uint64_t return_bytes; /**< their sum */
    size_t asked_bytes;    /**< of used_bytes, as asked; the rest is rounding */
} sl_mem_class_stats_t;

typedef struct sl_mem_stats {
    sl_mem_class_stats_t classes[SL_MEM_N_CLASSES];
    size_t used_bytes;      /**< device bytes in blocks now, as rounded */
    size_t peak_bytes;      /**< most at once in this mini-batch, device */
    size_t held_bytes;      /**< device regions held, less what they gave
                                 back of themselves; what the limit counts */
    size_t peak_held_bytes; /**< most at once in this mini-batch */
    size_t limit_bytes;     /**< in force */
    size_t host_used_bytes;
    size_t host_peak_bytes;
    size_t host_held_bytes;    /**< host regions, likewise */
    size_t largest_free_bytes; /**< largest free block of the device pool */
    uint64_t n_region_allocs;  /**< asked of the backing since creation */
    uint64_t trimmed_bytes;    /**< given back by parts, since creation, of
                                    both pools */
    uint64_t n_live_blocks;
    size_t asked_limit_bytes; /**< by the last request, clamped; reached at a
                                   boundary when equal to limit_bytes */
    size_t pinned_bytes;      /**< when the last boundary missed what was asked:
                                   device bytes in live blocks; else 0 */
    size_t host_limit_bytes;
    size_t unit_bytes;       /**< device regions are whole multiples of it */
    size_t total_peak_bytes; /**< most at once in this mini-batch, device and
                                  host together: the need */
} sl_mem_stats_t;

/** Where the device memory of a class lies. */
typedef struct sl_mem_class_survey {
    size_t device_bytes;  /**< in blocks of the class on the device */
    size_t region_bytes;  /**< held, of regions with such a block */
    double fragmentation; /**< 1 - device_bytes / region_bytes; 0 = none */
} sl_mem_class_survey_t;

typedef struct sl_mem_survey {
    sl_mem_class_survey_t classes[SL_MEM_N_CLASSES];
    size_t n_regions;
    size_t n_free_blocks;
    double fragmentation; /**< 1 - largest / total free bytes; 0 = none */
    size_t touched_bytes; /**< of device regions, in physical memory */
    size_t host_touched_bytes;
} sl_mem_survey_t;

/**
 * Create the allocator of one device.
 *
 * @param[in]  params borrowed for the call
 * @param[out] mem_p  caller destroys it
 * @return SL_OK, SL_ERR_INVALID_ARG, SL_ERR_NO_MEMORY
 */
SL_API SL_NODISCARD sl_status_t sl_mem_create(const sl_mem_params_t *params,
                                              sl_mem_t **mem_p);

/** Destroy. NULL is allowed. Warns about blocks still live and frees them. */
SL_API void sl_mem_destroy(sl_mem_t *mem);

/**
 * A block of `bytes` (0 gives a valid empty block), from the device when the
 * limit allows, else from the host pool.
 *
 * @return SL_OK; SL_ERR_QUOTA (refused, logged at debug) with a detail that
 *         states class, asked, held, limit, free and the largest free block;
 *         SL_ERR_INVALID_ARG; SL_ERR_NO_MEMORY for the host's own records.
 */
SL_API SL_NODISCARD sl_status_t sl_mem_alloc(sl_mem_t *mem,
                                             sl_mem_class_t mem_class,
                                             size_t bytes,
                                             sl_mem_block_t **block_p);

/** The block stays where it is until it is released, whatever the limit: for
 *  memory that somebody else writes into at any time. NULL is allowed. */
SL_API void sl_mem_pin(sl_mem_block_t *block);

/** Give a block back to the allocator it came from, found in its header.
 *  NULL is allowed. A block that is not ours is reported and left alone. */
SL_API void sl_mem_release(sl_mem_block_t *block);

/**
 * Ask for another limit, 0 for as little as possible; applied at the next
 * sl_mem_boundary(). From any thread. Above the capacity it is clamped.
 */
SL_API void sl_mem_limit_request(sl_mem_t *mem, size_t limit_bytes);

/**
 * The end of a mini-batch: no op of the device is in flight (those submitted
 * are waited for with `quiesce`, when given, before anything moves). Applies
 * a requested limit and starts the peaks of the next mini-batch. A target
 * that was missed is tried again at later boundaries. After a raise all that
 * fits has come back from the host when the boundary returns, and the host
 * memory that is free then has gone back to the system; the classes that
 * overflow inside a mini-batch are chosen here, from its peaks.
 *
 * @param[out] limit_p the limit now in force (what was reached, when less
 *             could be given back than asked); may be NULL
 */
SL_API void sl_mem_boundary(sl_mem_t *mem, size_t *limit_p);

SL_API void sl_mem_stats(const sl_mem_t *mem, sl_mem_stats_t *stats_p);

/** Walks all blocks and pages: for reports, not for every op. */
SL_API void sl_mem_survey(const sl_mem_t *mem, sl_mem_survey_t *survey_p);

/**
 * Record every allocation, release and boundary as text, one a line:
 *
 *     sluice-memory-trace 1 NAME
 *     a ID CLASS BYTES   (CLASS is the number of sl_mem_class_t)
 *     r ID
 *     b LIMIT            (a boundary; the limit then in force)
 *
 * Blocks live at the start come first, as allocations. `stream` is borrowed
 * until sl_mem_trace_end().
 */
SL_API void sl_mem_trace_begin(sl_mem_t *mem, FILE *stream);
/** @return SL_OK, also when nothing was recorded; SL_ERR_IO */
SL_API SL_NODISCARD sl_status_t sl_mem_trace_end(sl_mem_t *mem);

SL_END_DECLS
#endif /* SL_MEMORY_MEMORY_H */
