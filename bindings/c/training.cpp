#include <algorithm>
#include <guozhuang/optimizer.hpp>
#include <guozhuang/sampler.hpp>
#include <guozhuang/training.hpp>
#include <map>
#include <span>
#include <utility>

#include "border.hpp"

struct GzReducer {
    guozhuang::GradientReducer reducer;
};
struct GzBytes {
    std::vector<std::string> texts;
};
struct GzSampler {
    guozhuang::DistributedSampler sampler;
};

using namespace guozhuang::c;  // NOLINT(google-build-using-namespace)
namespace gz = guozhuang;

namespace {

gz::OptimizerOptions options_of(const GzReducerOptions& given, std::size_t parameters) {
    std::span<float> uses;
    if (given.uses != nullptr) uses = {given.uses, std::max<std::size_t>(parameters, 1)};
    std::vector<int> groups;
    if (given.groups != nullptr) groups.assign(given.groups, given.groups + parameters);
    return {.name = text_of(given.name),
            .op = reduce_op_of(given.op),
            .backward_passes_per_step = given.backward_passes_per_step,
            .gradient_scale = given.gradient_scale,
            .bundle_bytes = given.bundle_bytes,
            .first_bundle_bytes = given.first_bundle_bytes,
            .stream = stream_of(given.stream),
            .process_set = set_of(given.process_set),
            .check_values = given.check_values != 0,
            .memory = enumerator(given.memory, gz::Memory::share, "use of memory"),
            .uses = uses,
            .groups = std::move(groups)};
}

gz::GradientReducer& reducer_of(GzReducer* reducer) {
    return required(reducer, "the reducer").reducer;
}
const gz::GradientReducer& reducer_of(const GzReducer* reducer) {
    return required(reducer, "the reducer").reducer;
}

std::string bytes_of(const void* bytes, std::size_t count) {
    const auto list = list_of(static_cast<const char*>(bytes), count, "the bytes");
    return {list.begin(), list.end()};
}

}  // namespace

GzStatus gz_reducer_create(const GzParameter* parameters, size_t count,
                           const GzReducerOptions* options, GzReducer** reducer) {
    return create(reducer, [&] {
        const auto given = options_or(options, GzReducerOptions GZ_REDUCER_OPTIONS_INIT);
        return new GzReducer{
            gz::GradientReducer(parameters_of(parameters, count), options_of(given, count))};
    });
}
GzStatus gz_reducer_mark(GzReducer* reducer, size_t parameter) {
    return guarded([&] { reducer_of(reducer).mark(parameter); });
}
GzStatus gz_reducer_mark_name(GzReducer* reducer, const char* parameter) {
    return guarded([&] { reducer_of(reducer).mark(std::string_view(required_text(parameter))); });
}
GzStatus gz_reducer_set_stream(GzReducer* reducer, const GzStream* stream) {
    return guarded(
        [&] { reducer_of(reducer).set_stream(*stream_of(&required(stream, "the stream"))); });
}
GzStatus gz_reducer_close(GzReducer* reducer) {
    return guarded([&] { reducer_of(reducer).close(); });
}
GzStatus gz_reducer_synchronize(GzReducer* reducer) {
    return guarded([&] { reducer_of(reducer).synchronize(); });
}
GzStatus gz_reducer_synchronize_for(GzReducer* reducer, int64_t limit_us, int* done) {
    return put(done,
               [&] { return reducer_of(reducer).synchronize_for(limit_of(limit_us)) ? 1 : 0; });
}
GzStatus gz_reducer_finish_pass(GzReducer* reducer, int (*step)(void* context), void* context,
                                int* stepped) {
    return guarded([&] {
        const bool has_stepped = reducer_of(reducer).finish_pass([&] {
            if (step != nullptr) call_back(step, context);
        });
        if (stepped != nullptr) *stepped = has_stepped ? 1 : 0;
    });
}
GzStatus gz_reducer_discard(GzReducer* reducer, const char* reason) {
    return guarded([&] { reducer_of(reducer).discard(text_of(reason)); });
}
GzStatus gz_reducer_pause(GzReducer* reducer) {
    return guarded([&] { reducer_of(reducer).pause(); });
}
GzStatus gz_reducer_resume(GzReducer* reducer) {
    return guarded([&] { reducer_of(reducer).resume(); });
}
GzStatus gz_reducer_is_used(const GzReducer* reducer, size_t parameter, int* used) {
    return put(used, [&] { return reducer_of(reducer).is_used(parameter) ? 1 : 0; });
}
GzStatus gz_reducer_is_closed(const GzReducer* reducer, int* closed) {
    return put(closed, [&] { return reducer_of(reducer).is_closed() ? 1 : 0; });
}
GzStatus gz_reducer_is_synchronised(const GzReducer* reducer, int* synchronised) {
    return put(synchronised, [&] { return reducer_of(reducer).is_synchronised() ? 1 : 0; });
}
void gz_reducer_free(GzReducer* reducer) {
    delete reducer;
}

GzStatus gz_broadcast_parameters(const GzParameter* parameters, size_t count, int root,
                                 const GzProcessSet* set) {
    return guarded(
        [&] { gz::broadcast_parameters(parameters_of(parameters, count), root, set_of(set)); });
}
GzStatus gz_broadcast_optimizer_state(const GzNamedTensor* tensors, size_t count, int root,
                                      const GzProcessSet* set) {
    return guarded([&] {
        gz::OptimizerState state;
        for (auto& [name, tensor] : named_tensors_of(tensors, count)) state(name, tensor);
        state.broadcast(root, set_of(set));
    });
}
GzStatus gz_check_consistent(const GzParameter* parameters, size_t count, const GzStream* stream,
                             const GzProcessSet* set) {
    return guarded([&] {
        gz::check_consistent(parameters_of(parameters, count), set_of(set), stream_of(stream));
    });
}
GzStatus gz_clip_by_global_norm(const GzParameter* parameters, size_t count, double max_norm,
                                const GzStream* stream, double* norm) {
    return guarded([&] {
        const auto before = gz::clip_by_global_norm(parameters_of(parameters, count), max_norm,
                                                    {.stream = stream_of(stream)});
        if (norm != nullptr) *norm = before;
    });
}
GzStatus gz_average_metrics(const char* const* keys, double* values, size_t count,
                            const GzProcessSet* set) {
    return guarded([&] {
        const auto names = list_of(keys, count, "the keys");
        const auto numbers = list_of(values, count, "the values");
        std::map<std::string, double> metrics;
        std::vector<std::string> keys_of_numbers;  // nothing is allocated after the operation
        for (std::size_t i = 0; i < count; ++i)
            if (!metrics.emplace(keys_of_numbers.emplace_back(required_text(names[i])), numbers[i])
                     .second)
                refuse("the key '" + keys_of_numbers[i] + "' is given twice");
        metrics = gz::average_metrics(metrics, set_of(set));
        for (std::size_t i = 0; i < count; ++i) numbers[i] = metrics.at(keys_of_numbers[i]);
    });
}

GzStatus gz_scale_learning_rate(double base_rate, const GzProcessSet* set, double* rate) {
    return put(rate, [&] { return gz::scale_learning_rate(base_rate, set_of(set)); });
}
GzStatus gz_steps_per_epoch(size_t samples, size_t batch, const GzProcessSet* set, size_t* steps) {
    return put(steps, [&] { return gz::steps_per_epoch(samples, batch, set_of(set)); });
}

GzStatus gz_broadcast_bytes(const void* bytes, size_t count, int root, const GzProcessSet* set,
                            GzBytes** result) {
    return create(result, [&] {
        auto object = std::make_unique<GzBytes>();
        gz::broadcast_bytes(object->texts.emplace_back(bytes_of(bytes, count)), root, set_of(set));
        return object.release();
    });
}
GzStatus gz_all_gather_bytes(const void* bytes, size_t count, const GzProcessSet* set,
                             GzBytes** result) {
    return create(result, [&] {
        return new GzBytes{gz::all_gather_bytes(bytes_of(bytes, count), set_of(set))};
    });
}
GzStatus gz_bytes_count(const GzBytes* bytes, size_t* count) {
    return put(count, [&] { return required(bytes, "the bytes").texts.size(); });
}
GzStatus gz_bytes_get(const GzBytes* bytes, size_t index, const void** data, size_t* count) {
    return guarded([&] {
        const auto& text = item_of(required(bytes, "the bytes").texts, index, "byte strings");
        required(count, "where the number of bytes goes");
        required(data, "where the bytes go") = text.data();
        *count = text.size();
    });
}
void gz_bytes_free(GzBytes* bytes) {
    delete bytes;
}

GzStatus gz_sampler_create(size_t samples, const GzSamplerOptions* options, GzSampler** sampler) {
    return create(sampler, [&] {
        const auto given = options_or(options, GzSamplerOptions GZ_SAMPLER_OPTIONS_INIT);
        return new GzSampler{gz::DistributedSampler(
            samples, {.seed = given.seed,
                      .shuffle = given.shuffle != 0,
                      .tail = enumerator(given.tail, gz::Tail::uneven, "tail"),
                      .process_set = set_of(given.process_set)})};
    });
}
GzStatus gz_sampler_set_epoch(GzSampler* sampler, uint64_t epoch) {
    return guarded([&] { required(sampler, "the sampler").sampler.set_epoch(epoch); });
}
GzStatus gz_sampler_set_epoch_from(GzSampler* sampler, uint64_t epoch, size_t done) {
    return guarded([&] { required(sampler, "the sampler").sampler.set_epoch(epoch, done); });
}
GzStatus gz_sampler_indices(const GzSampler* sampler, const size_t** indices, size_t* count) {
    return guarded([&] {
        const auto& all = required(sampler, "the sampler").sampler.indices();
        required(count, "where the number of samples goes");
        required(indices, "where the samples go") = all.data();
        *count = all.size();
    });
}
void gz_sampler_free(GzSampler* sampler) {
    delete sampler;
}
