#include "api/requests.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <guozhuang/error.hpp>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "api/check.hpp"
#include "api/output_checks.hpp"
#include "api/tensor_layout.hpp"
#include "base/error_text.hpp"
#include "engine/release_thread.hpp"

namespace guozhuang::api {
namespace {

using protocol::Description;

// The longest encodings of fields of a tensor's description.
constexpr std::size_t most_bytes_beside_name = 8, most_bytes_of_extent = 10;
static_assert(2 * protocol::max_description_bytes <= wire::max_control_bytes);

/// Whether the number is an enumerator.
template <class Enum>
bool is_enumerator(Enum value) {
    return value >= Enum{} && value <= last_of(value);
}

}  // namespace

void check_tensor(const TensorView& tensor, const Check& check) {
    check.that(is_enumerator(tensor.dtype), "there is no dtype {}", static_cast<int>(tensor.dtype));
    check.that(is_enumerator(tensor.device.kind), "there is no device kind {}",
               static_cast<int>(tensor.device.kind));
    check.that(tensor.shape.size() <= protocol::max_dimensions,
               "{} dimensions; at most {} are supported", tensor.shape.size(),
               protocol::max_dimensions);
    check.that(std::ranges::all_of(tensor.shape, [](auto extent) { return extent >= 0; }),
               "shape [{}] has a negative extent", list_of(tensor.shape));
    check.that(is_countable(tensor),
               "a tensor of {} elements of shape [{}] would have more bytes than can be counted",
               name_of(tensor.dtype), list_of(tensor.shape));
    check.that(is_contiguous(tensor),
               "the tensor is not contiguous: shape [{}] with strides [{}]; copy it into a dense "
               "one first",
               list_of(tensor.shape), list_of(tensor.strides));
    check.that(tensor.data != nullptr || tensor.count() == 0,
               "the tensor of shape [{}] has no memory (null data)", list_of(tensor.shape));
    check.that(tensor.device.kind == DeviceKind::host || tensor.count() == 0 || is_aligned(tensor),
               "its address on the device, {}, is no multiple of the {} bytes of an element of {}",
               fmt::ptr(tensor.data), size_of(tensor.dtype), name_of(tensor.dtype));
}

namespace {

void check_reduction(const Description& description, DType dtype, const Check& check) {
    const auto& operation = row_of(description.operation);
    if (!operation.has_op) return;
    const bool logical = description.op == ReduceOp::min || description.op == ReduceOp::max;
    check.that(dtype != DType::boolean || logical,
               "op {} is not defined on bool; use min (and) or max (or)", name_of(description.op));
    if (description.op == ReduceOp::adasum) {
        check.that(is_floating(dtype),
                   "op adasum is not defined on {}; it needs f16, bf16, f32 or f64",
                   name_of(dtype));
        check.that(description.operation == OperationKind::allreduce,
                   "op adasum weighs whole tensors; use allreduce");
    }
    check.that(
        is_floating(dtype) || (description.prescale == 1 && description.postscale == 1),
        "scales must be 1 on {}, not prescale {} and postscale {}; scale a floating dtype instead",
        name_of(dtype), description.prescale, description.postscale);
}

void check_splits(const engine::Call& call, int size, const Check& check) {
    const auto& operation = row_of(call.description.operation);
    const auto& splits = call.splits;
    check.that(splits.empty() || !call.description.group,
               "splits are of one tensor; without them a group is scattered in equal parts");
    check.that(splits.empty() || operation.has_splits,
               "it takes no splits, because it does not cut its tensor");
    if (!operation.has_splits || call.description.group) return;
    const auto rows = call.tensors.front().shape.front();
    if (splits.empty()) {
        check.that(operation.splits_agreed || rows % size == 0,
                   "dim 0 is {}, which {} ranks cannot share equally; give splits", rows, size);
        return;
    }
    check.that(splits.size() == static_cast<std::size_t>(size), "{} splits for {} ranks",
               splits.size(), size);
    check.that(std::ranges::all_of(splits, [](auto split) { return split >= 0; }),
               "splits [{}] contain a negative one", list_of(splits));
    std::int64_t sum = 0;
    bool counted = true;
    for (const auto split : splits) counted = counted && !__builtin_add_overflow(sum, split, &sum);
    check.that(counted && sum == rows, "splits [{}] sum to {}, but dim 0 is {}", list_of(splits),
               counted ? std::to_string(sum) : "more than can be counted", rows);
}

/// The caller's splits; equal ones for an all_to_all without splits.
std::vector<std::int64_t> splits_of(const engine::Call& call, int size) {
    const auto& operation = row_of(call.description.operation);
    if (call.splits.empty() && operation.has_splits && !operation.splits_agreed)
        return std::vector(static_cast<std::size_t>(size),
                           call.tensors.front().shape.front() / size);
    return {call.splits.begin(), call.splits.end()};
}

void check_timeout(std::chrono::milliseconds timeout, const Check& check) {
    check.that(timeout.count() >= 0, "a timeout of {} ms; it may not be negative", timeout.count());
}

void set_deadline(engine::Request& request, std::chrono::milliseconds timeout) {
    if (timeout.count() == 0) return;
    request.submitted = base::Clock::now();
    request.deadline = base::deadline_after(timeout);
}

/// Names a tensor of a group.
std::string name_of_tensor(const engine::Call& call, std::size_t i) {
    return call.tensor_names.empty() ? fmt::format("[{}]", i) : call.tensor_names[i];
}

void check_one_device(const engine::Call& call, const Check& check) {
    const auto label = [&](std::size_t i) {
        const auto name = name_of_tensor(call, i);
        return call.tensor_names.empty() ? name : base::quote(name);
    };
    for (std::size_t i = 1; i < call.tensors.size(); ++i) {
        const auto &first = call.tensors.front().device, &device = call.tensors[i].device;
        if (device != first)
            check.fail(ErrorCode::invalid_argument,
                       fmt::format("tensor {} is on {}, but {} on {}: they must be on one device",
                                   label(0), name_of(first), label(i), name_of(device)));
    }
}

void check_tensors(const engine::Call& call, const Check& check) {
    const auto& description = call.description;
    check.that(!description.group || !call.tensors.empty(), "the group has no tensors");
    check.that(call.tensors.size() <= protocol::max_tensors,
               "{} tensors in one group; at most {} are supported", call.tensors.size(),
               protocol::max_tensors);
    const auto check_one = [&](const TensorView& tensor, const Check& own) {
        check_tensor(tensor, own);
        check_reduction(description, tensor.dtype, own);
        own.that(!row_of(description.operation).has_rows || !tensor.shape.empty(),
                 "a 0-dimensional tensor has no rows; give it a dimension");
    };
    for (std::size_t i = 0; i < call.tensors.size(); ++i)
        if (description.group)
            check_one(call.tensors[i], check.of_tensor(call.tensor_names, i));
        else
            check_one(call.tensors[i], check);
    check_one_device(call, check);
}

void check_root(SetRuntime& set, const Description& description, const Check& check) {
    const int size = set.transport().size();
    check.that(description.root >= 0 && description.root < size,
               "root {} is not a rank; there are ranks 0 to {}", description.root, size - 1);
    check.that(!row_of(description.operation).has_root ||
                   set.group_ranks().group_rank_of(description.root),
               "root {} is not in {}", description.root, set.group_ranks().name());
}

Check check_of(SetRuntime& set, const engine::Call& call) {
    return {name_of(call.description.operation), call.name, set.transport().rank()};
}

/// Returns the driver of the device; null for the plain host.
std::shared_ptr<device::Driver> use_device(SetRuntime& set, Device device, const Check& check) {
    try {
        return set.use_device(device);
    } catch (const Error& error) {
        check.fail(error.code(), error.what());
    }
}

/// Returns the driver of the tensors' device; null for the plain host.
std::shared_ptr<device::Driver> check_devices(SetRuntime& set, const engine::Call& call,
                                              const Check& check) {
    if (call.tensors.empty()) return nullptr;
    const auto check_it = [&](std::size_t i) {
        return call.description.group ? check.of_tensor(call.tensor_names, i) : check;
    };
    auto driver = use_device(set, call.tensors.front().device, check_it(0));
    const auto check_place = [&](const TensorView& tensor, const Check& own) {
        const auto problem = set.device_mismatch(tensor);
        own.that(problem.empty(), "{}", problem);
    };
    for (std::size_t i = 0; i < call.tensors.size(); ++i) check_place(call.tensors[i], check_it(i));
    for (std::size_t i = 0; i < call.outputs.size(); ++i)
        check_place(call.outputs[i], check.of(name_of_output(call, i)));
    return driver;
}

}  // namespace

void check_name(std::string_view operation, std::string_view name) {
    Check(operation, name, {})
        .that(!name.starts_with('#'),
              "names that begin with # are those of operations and plans without a name; choose "
              "another");
}

void check_tensor(const TensorView& tensor, std::string_view operation, std::string_view name) {
    check_tensor(tensor, Check(operation, name, {}));
}

std::vector<std::size_t> same_memory(std::span<const NamedTensor> tensors,
                                     std::string_view operation, std::string_view name) {
    const auto begin = [&](std::size_t i) {
        return reinterpret_cast<std::uintptr_t>(tensors[i].tensor.data);
    };
    const auto end = [&](std::size_t i) { return begin(i) + tensors[i].tensor.bytes(); };
    std::vector<std::size_t> last(tensors.size()), by_address;
    std::iota(last.begin(), last.end(), std::size_t{0});
    std::ranges::copy_if(last, std::back_inserter(by_address),
                         [&](std::size_t i) { return begin(i) < end(i); });
    std::ranges::sort(by_address, std::ranges::greater{},
                      [&](std::size_t i) { return std::pair(begin(i), i); });
    for (std::size_t k = 1; k < by_address.size(); ++k) {
        const auto one = by_address[k], next = last[by_address[k - 1]];
        if (end(one) <= begin(next)) continue;
        const auto &a = tensors[one], &b = tensors[next];
        Check(operation, name, {})
            .that(begin(one) == begin(next) && end(one) == end(next) &&
                      a.tensor.dtype == b.tensor.dtype,
                  "{} and {} overlap: {} bytes of {} at {}, {} bytes of {} at {}; pass the one "
                  "or the other",
                  base::quote(a.name), base::quote(b.name), a.tensor.bytes(),
                  name_of(a.tensor.dtype), a.tensor.data, b.tensor.bytes(), name_of(b.tensor.dtype),
                  b.tensor.data);
        last[one] = next;
    }
    return last;
}

void move_once(std::span<NamedTensor> tensors, std::string_view operation, std::string_view name) {
    const auto last = same_memory(tensors, operation, name);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        if (last[i] == i) continue;
        tensors[i].name =
            fmt::format("{} (the memory of {})", tensors[i].name, tensors[last[i]].name);
        tensors[i].tensor.shape = {0};
        tensors[i].tensor.strides.clear();
    }
}

void check(SetRuntime& set, const engine::Call& call) {
    const auto check = check_of(set, call);
    check.that(call.name.size() <= protocol::max_name_bytes,
               "the name is {} bytes long; at most {} are supported", call.name.size(),
               protocol::max_name_bytes);
    check_timeout(call.timeout, check);
    check.that(is_enumerator(call.description.op), "there is no reduce op {}",
               static_cast<int>(call.description.op));
    check_root(set, call.description, check);
    check_tensors(call, check);
    check_splits(call, set.size(), check);
    check_outputs(set, call, check);
}

namespace {

/// Makes tensors of an in-place group that share memory move once. Returns the tensors' names, if
/// there are any.
std::vector<std::string> move_once(const engine::Call& call, engine::SharedTensors& tensors) {
    std::vector<std::string> names(call.tensor_names.begin(), call.tensor_names.end());
    if (!row_of(call.description.operation).in_place || tensors.size() < 2) return names;
    std::vector<NamedTensor> named;
    for (std::size_t i = 0; i < tensors.size(); ++i)
        named.push_back({name_of_tensor(call, i), tensors[i]});
    api::move_once(named, name_of(call.description.operation), call.name);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        if (named[i].tensor.shape == tensors[i].shape) continue;
        names.resize(tensors.size());  // the others without a name stay numbered
        names[i] = std::move(named[i].name);
        tensors[i] = std::move(named[i].tensor);
    }
    return names;
}

/// Names and describes a request: its tensors, which may have names, and splits that all ranks must
/// agree on.
std::pair<protocol::Name, protocol::SharedDescription> identify(
    SetRuntime& set, const engine::Call& call, const engine::SharedTensors& tensors,
    std::span<const std::string> tensor_names, const std::vector<std::int64_t>& splits) {
    auto description = call.description;
    const auto& operation = row_of(description.operation);
    if (!tensors.empty()) description.device = tensors.front().device.kind;
    if (operation.splits_agreed) description.splits = splits;
    const auto describe = [&](std::size_t i) {
        protocol::TensorDescription described{.dtype = tensors[i].dtype, .shape = tensors[i].shape};
        if (!tensor_names.empty()) described.name = tensor_names[i];
        if (operation.rows_differ) described.shape.front() = -1;
        return described;
    };
    if (!description.group && tensors.size() == 1)
        return set.identify(call.name, description, describe(0));
    const auto check = check_of(set, call);
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        const auto& [name, dtype, shape] = description.tensors.emplace_back(describe(i));
        check.that(name.size() <= protocol::max_name_bytes,
                   "the name of tensor {} is {} bytes long; at most {} are supported", i,
                   name.size(), protocol::max_name_bytes);
        bytes += name.size() + most_bytes_beside_name + shape.size() * most_bytes_of_extent;
        check.that(bytes <= protocol::max_description_bytes,
                   "the names and shapes of its first {} tensors alone take {} bytes to describe; "
                   "at most {} are supported: make several groups",
                   i + 1, bytes, protocol::max_description_bytes);
    }
    return {protocol::Name(call.name), protocol::share(std::move(description))};
}

}  // namespace

engine::Request prepare(SetRuntime& set, const engine::Call& call) {
    auto device = check_devices(set, call, check_of(set, call));
    engine::SharedTensors tensors(call.tensors);
    const auto names = move_once(call, tensors);
    auto splits = splits_of(call, set.size());
    auto [name, description] = identify(set, call, tensors, names, splits);
    return {.name = std::move(name),
            .number = call.number,
            .description = std::move(description),
            .tensors = std::move(tensors),
            .outputs = engine::SharedTensors(call.outputs),
            .splits = std::move(splits),
            .keep_alive = call.keep_alive,
            .device = std::move(device)};
}

namespace {

/// Records an event on each stream that produces the tensors' contents.
void mark_ready(engine::Request& request, std::span<const StreamRef> streams,
                const Check& check) try {
    const StreamRef usual{.device = request.tensors.front().device, .native = nullptr};
    for (const auto& stream : streams.empty() ? std::span(&usual, 1) : streams)
        request.ready.push_back(request.device->wrap(stream)->record());
} catch (const Error& error) {
    check.fail(error.code(), fmt::format("its stream cannot be used: {}", error.what()));
}

std::span<const StreamRef> as_span(const std::optional<StreamRef>& stream) {
    return {stream ? &*stream : nullptr, stream ? 1U : 0U};
}

}  // namespace

std::shared_ptr<engine::Pending> submit(SetRuntime& set, engine::Request&& request,
                                        std::span<const StreamRef> streams, bool caller_waits) {
    if (caller_waits) engine::ReleaseThread::check_wait(request);
    if (request.device)
        mark_ready(request, streams,
                   Check(request.operation(), request.name.text(), set.transport().rank()));
    return set.engine().submit(std::move(request), caller_waits);
}

std::shared_ptr<engine::Pending> submit(SetRuntime& set, const engine::Call& call,
                                        bool caller_waits) {
    auto request = prepare(set, call);
    set_deadline(request, call.timeout);
    return submit(set, std::move(request), as_span(call.stream), caller_waits);
}

std::shared_ptr<engine::Pending> submit_point_to_point(SetRuntime& set, const TensorView& tensor,
                                                       const protocol::Route& route,
                                                       const PointToPointOptions& options,
                                                       bool caller_waits) {
    const auto& transport = set.transport();
    const Check check(route.sending ? "send" : "recv", "", transport.rank());
    check.that(route.peer >= 0 && route.peer < transport.size(),
               "rank {} does not exist; there are ranks 0 to {}", route.peer, transport.size() - 1);
    const auto group_rank = set.group_ranks().group_rank_of(route.peer);
    check.that(group_rank.has_value(), "rank {} is not in {}", route.peer,
               set.group_ranks().name());
    check.that(route.tag <= transport.largest_user_tag(), "tag {} is too large for {}; at most {}",
               route.tag, transport.description(), transport.largest_user_tag());
    check_tensor(tensor, check);
    check_timeout(options.timeout, check);
    auto device = use_device(set, tensor.device, check);
    const auto problem = set.device_mismatch(tensor);
    check.that(problem.empty(), "{}", problem);
    engine::Request request{.kind = engine::Request::Kind::point_to_point,
                            .name = fmt::format("{} {} {}", route.sending ? "send" : "recv",
                                                route.sending ? "to" : "from", route.peer),
                            .route = {*group_rank, route.tag, route.sending},
                            .tensors = {tensor},
                            .keep_alive = options.keep_alive,
                            .device = std::move(device)};
    set_deadline(request, options.timeout);
    if (caller_waits) engine::ReleaseThread::check_wait(request);
    if (request.device) mark_ready(request, as_span(options.stream), check);
    return set.engine().submit(std::move(request), caller_waits);
}

}  // namespace guozhuang::api
