#ifndef GUOZHUANG_H
#define GUOZHUANG_H

/// Guozhuang for C, and for all that can call C. It does what the C++ headers beside this one say
/// (<guozhuang/operations.hpp>, <guozhuang/optimizer.hpp> ...): a function here has the name of the
/// one there, and what is said here is what C adds to it. docs/c.md has a trainer.
///
/// Errors. A function that can fail returns a GzStatus: GZ_OK or why it failed, of which
/// gz_last_error() has the text. Then it has written nothing to where its results go. NULL for what
/// is needed is GZ_ERROR_INVALID_ARGUMENT. No exception leaves a function.
///
/// Objects (GzHandle, GzPlan ...) are made by the library, and each ends by its own gz_..._free(),
/// which takes NULL as free() does. Arguments are copied during the call, except for the elements
/// of tensors; a result given as a pointer to const lives as long as its object. Options are a
/// pointer, and NULL means the defaults.
///
/// Callbacks must return: no exception, longjmp() or pthread_exit() may leave them. They come on
/// the calling thread before the function returns, unless said otherwise. One that fails returns
/// other than 0; if that is the status of a call that has failed in it, the last one, the function
/// fails with that error, else with GZ_ERROR_CALLBACK.
///
/// Any thread may call any function, if no other one uses the same object meanwhile; handles may be
/// used by several threads until one frees them. Functions of guozhuang_training.h that are
/// collective are called by one thread of a rank at a time.
///
/// The end. When the last gz_shutdown() has returned GZ_OK, all operations are over: release() has
/// been called for all of them, no other callback comes but that of the log, and that one neither
/// when gz_set_log_callback(NULL, NULL) has returned. After gz_leave() callbacks may come until the
/// process ends. Functions may be called in atexit() handlers.
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GZ_API __attribute__((visibility("default")))

// --- Values. Numbers do not change, and new ones are added behind those that are there. ----------

/// The number of guozhuang::ErrorCode, whose comments say what each means, and one more: 0 is
/// success.
typedef int32_t GzStatus;
enum {
    GZ_OK = 0,
    GZ_ERROR_INVALID_ARGUMENT = 1,
    GZ_ERROR_DUPLICATE_NAME = 2,
    GZ_ERROR_NOT_INITIALISED = 3,
    GZ_ERROR_CONFIGURATION = 4,
    GZ_ERROR_MISMATCH = 5,
    GZ_ERROR_DEPARTED = 6,
    GZ_ERROR_DISCARDED = 7,
    GZ_ERROR_TIMEOUT = 8,
    GZ_ERROR_ABORTED = 9,
    GZ_ERROR_RANK_DIED = 10,
    GZ_ERROR_WIRE = 11,
    GZ_ERROR_OUT_OF_MEMORY = 12,
    GZ_ERROR_UNAVAILABLE = 13,
    GZ_ERROR_INTERNAL = 14,
    GZ_ERROR_CALLBACK = 1000  ///< no ErrorCode: the caller's callback has failed
};

/// The number of guozhuang::DType and one more, so that 0 is none. GZ_BOOLEAN is one byte, 0 or 1.
typedef int32_t GzDType;
enum {
    GZ_U8 = 1,
    GZ_I8 = 2,
    GZ_I16 = 3,
    GZ_I32 = 4,
    GZ_I64 = 5,
    GZ_BOOLEAN = 6,
    GZ_F16 = 7,
    GZ_BF16 = 8,
    GZ_F32 = 9,
    GZ_F64 = 10,
    GZ_U16 = 11,
    GZ_U32 = 12,
    GZ_U64 = 13
};

typedef int32_t GzReduceOp;  ///< guozhuang::ReduceOp
enum { GZ_SUM = 0, GZ_AVERAGE = 1, GZ_MIN = 2, GZ_MAX = 3, GZ_PRODUCT = 4, GZ_ADASUM = 5 };

typedef int32_t GzDeviceKind;  ///< guozhuang::DeviceKind
enum { GZ_HOST = 0, GZ_CUDA = 1 };

typedef int32_t GzLogLevel;  ///< guozhuang::LogLevel
enum { GZ_LOG_DEBUG = 0, GZ_LOG_INFO = 1, GZ_LOG_WARNING = 2, GZ_LOG_ERROR = 3, GZ_LOG_OFF = 4 };

typedef int32_t GzTail;  ///< guozhuang::Tail
enum { GZ_PAD = 0, GZ_DROP = 1, GZ_UNEVEN = 2 };

typedef int32_t GzMemory;  ///< guozhuang::Memory
enum { GZ_AS_IS = 0, GZ_SHARE = 1 };

// --- Structs that come in arrays. They never change. ---------------------------------------------

typedef struct GzDevice {
    GzDeviceKind kind;
    int32_t index;
} GzDevice;

/// A dense, row-major tensor in the caller's memory. All zero: no tensor, where that is allowed.
typedef struct GzTensor {
    void* data;              ///< only written by operations that say so
    const int64_t* shape;    ///< extents, outermost first; NULL if there are none
    const int64_t* strides;  ///< in elements; NULL: contiguous, as operations demand
    GzDType dtype;
    int32_t dimensions;  ///< extents of the shape; 0: one element
    GzDevice device;     ///< where `data` points
} GzTensor;

/// The name is the same on all ranks.
typedef struct GzNamedTensor {
    const char* name;
    GzTensor tensor;
} GzNamedTensor;

typedef struct GzParameter {
    const char* name;
    GzTensor value;
    GzTensor gradient;  ///< no tensor: the parameter is not trained
} GzParameter;

typedef struct GzStream {
    GzDevice device;
    void* native;  ///< a cudaStream_t; NULL: the device's default stream
} GzStream;

/// guozhuang::Agreement.
typedef struct GzAgreement {
    const char* tensor;
    const char* what;
    const char* value;
} GzAgreement;

// --- Errors --------------------------------------------------------------------------------------

/// Facts of an error; texts are never NULL, but may be empty. Fields may be added at its end;
/// `size` says how many bytes the library's have.
typedef struct GzError {
    size_t size;
    GzStatus status;
    const char* message;
    const char* tensor;
    const char* operation;
    const int* ranks;  ///< the ranks at fault, where that is known
    size_t rank_count;
} GzError;

/// Returns the error of the calling thread's last failed call; never NULL. It is valid until the
/// thread's next failed call or its end.
GZ_API const GzError* gz_last_error(void);
/// "invalid_argument", "mismatch" ...; "unknown" for a number that is none.
GZ_API const char* gz_status_name(GzStatus status);

// --- The session ---------------------------------------------------------------------------------

/// Options may grow at their end; `size` says how many bytes the caller's have, so that a program
/// need not be compiled again. The macros make the defaults.
typedef struct GzInitOptions {
    size_t size;
    /// The address of the caller's MPI_Comm, whose ranks become the job; NULL:
    /// MPI_COMM_WORLD. As a Fortran handle MPI_Comm_f2c() makes one.
    const void* mpi_communicator;
    size_t mpi_communicator_bytes;  ///< sizeof(MPI_Comm)
    int64_t time_to_shrink_ms;      ///< see SessionOptions
} GzInitOptions;
#define GZ_INIT_OPTIONS_INIT \
    { sizeof(GzInitOptions), NULL, 0, 0 }

/// Joins the job. Collective. Calls are counted; those behind the first take no communicator.
GZ_API GzStatus gz_init(const GzInitOptions* options);
/// guozhuang::Session::shrink: goes on without the ranks that have died. Collective over the ranks
/// that are left.
GZ_API GzStatus gz_shrink(void);
/// Takes one gz_init() back, and the last one leaves the job together with all other ranks.
/// Collective. One too many does nothing. Waits for the other ranks: a caller that must not, such
/// as an interpreter that looks at signals, calls it on a thread of its own.
GZ_API GzStatus gz_shutdown(void);
/// guozhuang::Session::leave, however often gz_init() has been called: for a rank that cannot go
/// on. The other ranks' errors have the reason (NULL: none). Does not wait.
GZ_API GzStatus gz_leave(const char* reason);
GZ_API int gz_is_initialized(void);  ///< 0 or 1
GZ_API GzStatus gz_rank(int* rank);
GZ_API GzStatus gz_size(int* size);
GZ_API GzStatus gz_local_rank(int* rank);
GZ_API GzStatus gz_local_size(int* size);
GZ_API GzStatus gz_cross_rank(int* rank);
GZ_API GzStatus gz_cross_size(int* size);
GZ_API GzStatus gz_is_homogeneous(int* homogeneous);

typedef struct GzRankOptions {
    size_t size;
    int take_turns;  ///< whether the ranks do, drawn from `turns`
    int hosts;
    uint64_t turns;
} GzRankOptions;
#define GZ_RANK_OPTIONS_INIT \
    { sizeof(GzRankOptions), 0, 1, 0 }

/// Runs `body` as `ranks` ranks, each a thread of this process, without mpirun, for tests. All
/// functions that a body calls are its rank's, and gz_init() and gz_shutdown() do nothing there.
/// Why one fails is what the other ranks and the caller get.
GZ_API GzStatus gz_run_ranks(int ranks, int (*body)(void* context), void* context,
                             const GzRankOptions* options);

/// While one lives, this process is not ended because another rank has died: guozhuang::ExitHold.
typedef struct GzExitHold GzExitHold;
GZ_API GzStatus gz_exit_hold_create(int64_t limit_ms, GzExitHold** hold);
GZ_API void gz_exit_hold_free(GzExitHold* hold);

// --- Process sets --------------------------------------------------------------------------------

/// Where a function takes one, NULL is all ranks. Freeing it does not remove the set.
typedef struct GzProcessSet GzProcessSet;
/// Collective over all ranks of the job, which all give the same ranks.
GZ_API GzStatus gz_process_set_create(const int* ranks, size_t rank_count, GzProcessSet** set);
GZ_API GzStatus gz_process_set_remove(GzProcessSet* set);  ///< collective, as creating one
GZ_API void gz_process_set_free(GzProcessSet* set);
GZ_API GzStatus gz_process_set_rank(const GzProcessSet* set, int* rank);
GZ_API GzStatus gz_process_set_size(const GzProcessSet* set, int* size);
GZ_API GzStatus gz_process_set_contains(const GzProcessSet* set, int rank, int* contains);
/// Writes as many as gz_process_set_size() says, for which there must be room.
GZ_API GzStatus gz_process_set_ranks(const GzProcessSet* set, int* ranks, size_t capacity);

// --- Operations ----------------------------------------------------------------------------------

/// Keeps the owner of memory alive as long as an operation may use it.
typedef struct GzKeepAlive {
    /// Called once with `owner`, when the operation is over or the call fails: on any thread, the
    /// library's too. NULL: nothing is kept. Not for options whose size is wrong.
    void (*release)(void* owner);
    void* owner;
} GzKeepAlive;

/// guozhuang::Options and those of its kind. An operation refuses what it does not take.
typedef struct GzOptions {
    size_t size;
    const char* name;  ///< NULL: numbered
    double prescale;   ///< of allreduce and reduce_scatter, as postscale
    double postscale;
    const GzStream* stream;   ///< NULL: the default stream of the tensor's device
    const GzTensor* outputs;  ///< one for each tensor; NULL: the library makes memory for them
    size_t output_count;
    const GzProcessSet* process_set;
    GzKeepAlive keep_alive;
    int64_t timeout_ms;     ///< then the job ends; 0: none but that of the configuration
    const int64_t* splits;  ///< of gz_reduce_scatter: rows for each rank; NULL: equal parts
    size_t split_count;
} GzOptions;
#define GZ_OPTIONS_INIT \
    { sizeof(GzOptions), NULL, 1, 1, NULL, NULL, 0, NULL, {NULL, NULL}, 0, NULL, 0 }

/// An operation that was submitted. Freeing it is harmless: the operation goes on.
typedef struct GzHandle GzHandle;
/// The output of all_gather, all_to_all and reduce_scatter: one tensor for each input tensor.
typedef struct GzResult GzResult;

// In place. Each exists blocking and, with a handle, asynchronous.
GZ_API GzStatus gz_allreduce(const GzTensor* tensor, GzReduceOp op, const GzOptions* options);
GZ_API GzStatus gz_allreduce_async(const GzTensor* tensor, GzReduceOp op, const GzOptions* options,
                                   GzHandle** handle);
GZ_API GzStatus gz_grouped_allreduce(const GzTensor* tensors, size_t count, GzReduceOp op,
                                     const GzOptions* options);
GZ_API GzStatus gz_grouped_allreduce_async(const GzTensor* tensors, size_t count, GzReduceOp op,
                                           const GzOptions* options, GzHandle** handle);
GZ_API GzStatus gz_broadcast(const GzTensor* tensor, int root, const GzOptions* options);
GZ_API GzStatus gz_broadcast_async(const GzTensor* tensor, int root, const GzOptions* options,
                                   GzHandle** handle);
GZ_API GzStatus gz_barrier(const GzOptions* options);
GZ_API GzStatus gz_barrier_async(const GzOptions* options, GzHandle** handle);
/// `last_rank` may be NULL.
GZ_API GzStatus gz_join(const GzProcessSet* set, int* last_rank);
GZ_API GzStatus gz_join_async(const GzProcessSet* set, GzHandle** handle);
// Take no name; messages of two ranks match by tag.
GZ_API GzStatus gz_send(const GzTensor* tensor, int to, uint16_t tag, const GzOptions* options);
GZ_API GzStatus gz_send_async(const GzTensor* tensor, int to, uint16_t tag,
                              const GzOptions* options, GzHandle** handle);
GZ_API GzStatus gz_recv(const GzTensor* tensor, int from, uint16_t tag, const GzOptions* options);
GZ_API GzStatus gz_recv_async(const GzTensor* tensor, int from, uint16_t tag,
                              const GzOptions* options, GzHandle** handle);

// With a result.
GZ_API GzStatus gz_all_gather(const GzTensor* tensor, const GzOptions* options, GzResult** result);
GZ_API GzStatus gz_all_gather_async(const GzTensor* tensor, const GzOptions* options,
                                    GzHandle** handle);
/// `splits`: as many as ranks; NULL and 0: equal parts.
GZ_API GzStatus gz_all_to_all(const GzTensor* tensor, const int64_t* splits, size_t split_count,
                              const GzOptions* options, GzResult** result);
GZ_API GzStatus gz_all_to_all_async(const GzTensor* tensor, const int64_t* splits,
                                    size_t split_count, const GzOptions* options,
                                    GzHandle** handle);
GZ_API GzStatus gz_reduce_scatter(const GzTensor* tensor, GzReduceOp op, const GzOptions* options,
                                  GzResult** result);
GZ_API GzStatus gz_reduce_scatter_async(const GzTensor* tensor, GzReduceOp op,
                                        const GzOptions* options, GzHandle** handle);
GZ_API GzStatus gz_grouped_all_gather(const GzTensor* tensors, size_t count,
                                      const GzOptions* options, GzResult** result);
GZ_API GzStatus gz_grouped_all_gather_async(const GzTensor* tensors, size_t count,
                                            const GzOptions* options, GzHandle** handle);
GZ_API GzStatus gz_grouped_reduce_scatter(const GzTensor* tensors, size_t count, GzReduceOp op,
                                          const GzOptions* options, GzResult** result);
GZ_API GzStatus gz_grouped_reduce_scatter_async(const GzTensor* tensors, size_t count,
                                                GzReduceOp op, const GzOptions* options,
                                                GzHandle** handle);

GZ_API GzStatus gz_handle_wait(const GzHandle* handle);
/// For at most that long, so that a caller can look at signals in between; `*done` is then whether
/// the operation is complete. It goes on if not.
GZ_API GzStatus gz_handle_wait_for(const GzHandle* handle, int64_t limit_us, int* done);
/// guozhuang::Handle::wait(StreamRef): waits until the operation is enqueued, and lets the stream
/// wait for its end.
GZ_API GzStatus gz_handle_wait_stream(const GzHandle* handle, const GzStream* stream);
/// `*done` is whether the operation is enqueued.
GZ_API GzStatus gz_handle_wait_stream_for(const GzHandle* handle, const GzStream* stream,
                                          int64_t limit_us, int* done);
GZ_API GzStatus gz_handle_test(const GzHandle* handle, int* done);  ///< only looks
/// Waits, then moves the result out of an operation that has one, once.
GZ_API GzStatus gz_handle_take(const GzHandle* handle, GzResult** result);
GZ_API GzStatus gz_handle_last_rank(const GzHandle* handle, int* last_rank);  ///< waits for a join
GZ_API void gz_handle_free(GzHandle* handle);

GZ_API GzStatus gz_result_count(const GzResult* result, size_t* count);  ///< tensors
/// The tensor, without a copy: in the library's memory, or in the output that the caller gave.
GZ_API GzStatus gz_result_tensor(const GzResult* result, size_t index, GzTensor* tensor);
/// How many of its rows came from each rank; of reduce_scatter, this rank's own count.
GZ_API GzStatus gz_result_rows(const GzResult* result, size_t index, const int64_t** rows,
                               size_t* count);
GZ_API void gz_result_free(GzResult* result);

// --- Memory that ranks share, and plans ----------------------------------------------------------

typedef struct GzArena GzArena;  ///< guozhuang::GradientArena
/// Collective. `device` NULL: host memory.
GZ_API GzStatus gz_arena_create(size_t bytes, const GzDevice* device, GzArena** arena);
/// `alignment` is a power of two, or 0: that of a cache line. The memory is zero, and freed with
/// the arena.
GZ_API GzStatus gz_arena_allocate(GzArena* arena, size_t bytes, size_t alignment, void** memory);
GZ_API GzStatus gz_arena_bytes(const GzArena* arena, size_t* bytes);
GZ_API GzStatus gz_arena_is_shared(const GzArena* arena, int* shared);
GZ_API void gz_arena_free(GzArena* arena);

typedef struct GzSharedMemory GzSharedMemory;
/// Collective. The tensors' memory is shared, where it is, until the registration is freed.
GZ_API GzStatus gz_share(const GzNamedTensor* tensors, size_t count, GzSharedMemory** memory);
GZ_API GzStatus gz_shared_memory_is_shared(const GzSharedMemory* memory, int* shared);
GZ_API void gz_shared_memory_free(GzSharedMemory* memory);

typedef struct GzPlanOptions {
    size_t size;
    const char* name;  ///< NULL: numbered
    GzReduceOp op;
    double prescale;
    double postscale;
    const GzStream* stream;
    const GzProcessSet* process_set;
} GzPlanOptions;
#define GZ_PLAN_OPTIONS_INIT \
    { sizeof(GzPlanOptions), NULL, GZ_AVERAGE, 1, 1, NULL, NULL }

typedef struct GzPlan GzPlan;
/// The tensors of all bundles one after the other, and how many of them each bundle has.
GZ_API GzStatus gz_plan_create(const GzNamedTensor* tensors, const size_t* bundle_counts,
                               size_t bundles, const GzPlanOptions* options, GzPlan** plan);
GZ_API GzStatus gz_plan_ready(GzPlan* plan, size_t bundle);
/// The bundle's tensors were made on these streams, and not on that of the options.
GZ_API GzStatus gz_plan_ready_streams(GzPlan* plan, size_t bundle, const GzStream* streams,
                                      size_t count);
GZ_API GzStatus gz_plan_wait(GzPlan* plan);
GZ_API GzStatus gz_plan_wait_streams(GzPlan* plan, const GzStream* streams, size_t count);
/// Either (with no streams the first) for at most that long; as gz_handle_wait_for().
GZ_API GzStatus gz_plan_wait_for(GzPlan* plan, const GzStream* streams, size_t count,
                                 int64_t limit_us, int* done);
GZ_API GzStatus gz_plan_agree(GzPlan* plan, const GzAgreement* agreements, size_t count);
GZ_API GzStatus gz_plan_discard(GzPlan* plan, const char* reason);
GZ_API GzStatus gz_plan_joins(const GzPlan* plan, uint64_t* joins);
GZ_API GzStatus gz_plan_size(const GzPlan* plan, size_t* bundles);
GZ_API GzStatus gz_plan_name(const GzPlan* plan, const char** name);
/// Waits for bundles whose data moves; those that wait for other ranks go on with a copy.
GZ_API void gz_plan_free(GzPlan* plan);

// --- Information ---------------------------------------------------------------------------------

GZ_API const char* gz_version(void);  ///< "0.1.0"
GZ_API GzStatus gz_start_timeline(const char* directory, int* started);
GZ_API GzStatus gz_stop_timeline(void);
/// Receives messages with `context`, on any thread, one call at a time; NULL: they go to standard
/// error again. When this returns, the callback before it does not run and is not called again. Not
/// for use in the callback itself.
GZ_API GzStatus gz_set_log_callback(void (*callback)(GzLogLevel level, const char* message,
                                                     void* context),
                                    void* context);
GZ_API GzStatus gz_log_message(GzLogLevel level, const char* message);
GZ_API GzStatus gz_traffic(uint64_t* bytes, uint64_t* messages);
GZ_API GzStatus gz_try_devices(void);  ///< collective

typedef struct GzInfo GzInfo;  ///< guozhuang::info(): build, MPI, topology, devices, configuration
GZ_API GzStatus gz_info_create(GzInfo** info);
GZ_API GzStatus gz_info_count(const GzInfo* info, size_t* count);
GZ_API GzStatus gz_info_get(const GzInfo* info, size_t index, const char** section,
                            const char** key, const char** value);
GZ_API void gz_info_free(GzInfo* info);

#ifdef __cplusplus
}
#endif

#include "guozhuang_training.h"

#endif
