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

/// Whether the number is that of an enumerator.
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

/// The caller's splits, checked; of all_to_all else equal ones.
std::vector<std::int64_t> splits_of(const OperationSpec& spec, int size, const Check& check) {
    const auto rows = spec.tensors.front().shape.front();
    if (spec.splits.empty() && !row_of(spec.description.operation).splits_agreed) {
        check.that(rows % size == 0,
                   "dim 0 is {}, which {} ranks cannot share equally; give splits", rows, size);
        return std::vector<std::int64_t>(static_cast<std::size_t>(size), rows / size);
    }
    if (spec.splits.empty()) return {};
    check.that(spec.splits.size() == static_cast<std::size_t>(size), "{} splits for {} ranks",
               spec.splits.size(), size);
    check.that(std::ranges::all_of(spec.splits, [](auto split) { return split >= 0; }),
               "splits [{}] contain a negative one", list_of(spec.splits));
    std::int64_t sum = 0;
    bool counted = true;
    for (const auto split : spec.splits)
        counted = counted && !__builtin_add_overflow(sum, split, &sum);
    check.that(counted && sum == rows, "splits [{}] sum to {}, but dim 0 is {}",
               list_of(spec.splits), counted ? std::to_string(sum) : "more than can be counted",
               rows);
    return spec.splits;
}

/// Splits that all ranks must agree on are part of the description.
void set_splits(OperationSpec& spec, const Check& check) {
    const auto& operation = row_of(spec.description.operation);
    if (operation.has_splits && !spec.description.group)
        spec.splits = splits_of(spec, spec.set->size(), check);
    check.that(spec.splits.empty() || !spec.description.group,
               "splits are of one tensor; without them a group is scattered in equal parts");
    check.that(spec.splits.empty() || operation.has_splits,
               "it takes no splits, because it does not cut its tensor");
    if (operation.splits_agreed) spec.description.splits = spec.splits;
}

protocol::TensorDescription describe(const OperationSpec& spec, std::size_t i) {
    const auto& tensor = spec.tensors[i];
    protocol::TensorDescription description{.dtype = tensor.dtype, .shape = tensor.shape};
    if (!spec.tensor_names.empty()) description.name = spec.tensor_names[i];
    if (row_of(spec.description.operation).rows_differ) description.shape.front() = -1;
    return description;
}

/// Returns the identity of a checked spec; fills the description with its tensors.
protocol::RequestIdentity identify(OperationSpec& spec, const Check& check) {
    auto& description = spec.description;
    if (!spec.tensors.empty()) description.device = spec.tensors.front().device.kind;
    if (!description.group && spec.tensors.size() == 1)
        return spec.set->identify(spec.name, description, describe(spec, 0));
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < spec.tensors.size(); ++i) {
        const auto& [name, dtype, shape] = description.tensors.emplace_back(describe(spec, i));
        check.that(name.size() <= protocol::max_name_bytes,
                   "the name of tensor {} is {} bytes long; at most {} are supported", i,
                   name.size(), protocol::max_name_bytes);
        bytes += name.size() + most_bytes_beside_name + shape.size() * most_bytes_of_extent;
        check.that(bytes <= protocol::max_description_bytes,
                   "the names and shapes of its first {} tensors alone take {} bytes to describe; "
                   "at most {} are supported: make several groups",
                   i + 1, bytes, protocol::max_description_bytes);
    }
    return {protocol::Name(spec.name), protocol::share(std::move(description))};
}

void check_timeout(std::chrono::milliseconds timeout, const Check& check) {
    check.that(timeout.count() >= 0, "a timeout of {} ms; it may not be negative", timeout.count());
}

void set_deadline(engine::Request& request, std::chrono::milliseconds timeout) {
    if (timeout.count() == 0) return;
    request.submitted = base::Clock::now();
    request.deadline = base::deadline_after(timeout);
}

/// Names a tensor of a group in errors.
std::string label_of(const OperationSpec& spec, std::size_t i) {
    return spec.tensor_names.empty() ? fmt::format("[{}]", i) : base::quote(spec.tensor_names[i]);
}

void check_one_device(const OperationSpec& spec, const Check& check) {
    for (std::size_t i = 1; i < spec.tensors.size(); ++i) {
        const auto &first = spec.tensors.front().device, &device = spec.tensors[i].device;
        if (device != first)
            check.fail(
                ErrorCode::invalid_argument,
                fmt::format("tensor {} is on {}, but {} on {}: they must be on one device",
                            label_of(spec, 0), name_of(first), label_of(spec, i), name_of(device)));
    }
}

void check_bare(const BareOperation& bare, const Check& check) {
    const auto& description = bare.description;
    check.that(bare.name.size() <= protocol::max_name_bytes,
               "the name is {} bytes long; at most {} are supported", bare.name.size(),
               protocol::max_name_bytes);
    check.that(!description.group || !bare.tensors.empty(), "the group has no tensors");
    check.that(bare.tensors.size() <= protocol::max_tensors,
               "{} tensors in one group; at most {} are supported", bare.tensors.size(),
               protocol::max_tensors);
    check_timeout(bare.timeout, check);
    check.that(bare.wait_first.count() >= 0, "wait_first is {} us; it may not be negative",
               bare.wait_first.count());
    check.that(is_enumerator(description.op), "there is no reduce op {}",
               static_cast<int>(description.op));
    const auto& transport = bare.set.transport();
    check.that(description.root >= 0 && description.root < transport.size(),
               "root {} is not a rank; there are ranks 0 to {}", description.root,
               transport.size() - 1);
    check.that(!row_of(description.operation).has_root ||
                   bare.set.group_ranks().group_rank_of(description.root),
               "root {} is not in {}", description.root, bare.set.group_ranks().name());
    for (std::size_t i = 0; i < bare.tensors.size(); ++i) {
        const auto& tensor = bare.tensors[i];
        const auto own = description.group ? check.of_tensor(bare.tensor_names, i) : check;
        check_tensor(tensor, own);
        check_reduction(description, tensor.dtype, own);
        own.that(!row_of(description.operation).has_rows || !tensor.shape.empty(),
                 "a 0-dimensional tensor has no rows; give it a dimension");
    }
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
std::shared_ptr<device::Driver> check_devices(const OperationSpec& spec, const Check& check) {
    if (spec.tensors.empty()) return nullptr;
    const auto check_of = [&](std::size_t i) {
        return spec.description.group ? check.of_tensor(spec.tensor_names, i) : check;
    };
    auto driver = use_device(*spec.set, spec.tensors.front().device, check_of(0));
    const auto check_place = [&](const TensorView& tensor, const Check& check_it) {
        const auto problem = spec.set->device_mismatch(tensor);
        check_it.that(problem.empty(), "{}", problem);
    };
    for (std::size_t i = 0; i < spec.tensors.size(); ++i) check_place(spec.tensors[i], check_of(i));
    for (std::size_t i = 0; i < spec.outputs.size(); ++i)
        check_place(spec.outputs[i], check.of(name_of_output(spec, i)));
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

void move_once(std::span<OperationSpec> specs, std::string_view operation, std::string_view name) {
    std::vector<NamedTensor> tensors;
    for (const auto& spec : specs)
        for (std::size_t i = 0; i < spec.tensors.size(); ++i)
            tensors.push_back(
                {spec.tensor_names.empty() ? fmt::format("[{}]", i) : spec.tensor_names[i],
                 spec.tensors[i]});
    const auto last = same_memory(tensors, operation, name);
    for (std::size_t at = 0; auto& spec : specs) {
        for (std::size_t i = 0; i < spec.tensors.size(); ++i, ++at) {
            if (last[at] == at) continue;
            // Only these unnamed tensors get names; the others stay numbered.
            spec.tensor_names.resize(spec.tensors.size());
            spec.tensor_names[i] =
                fmt::format("{} (the memory of {})", tensors[at].name, tensors[last[at]].name);
            spec.tensors[i].shape = {0};
            spec.tensors[i].strides.clear();
        }
    }
}

void check(const BareOperation& bare) {
    check_bare(bare,
               Check(name_of(bare.description.operation), bare.name, bare.set.transport().rank()));
}

engine::Request prepare(OperationSpec&& spec) {
    const auto operation = spec.description.operation;
    const auto name = spec.name;
    const Check check(name_of(operation), name, spec.set->transport().rank());
    check_bare({*spec.set, spec.description, name, spec.tensors, spec.timeout, spec.wait_first,
                spec.tensor_names},
               check);
    check_one_device(spec, check);
    set_splits(spec, check);
    check_outputs(spec, check);
    auto device = check_devices(spec, check);
    if (row_of(operation).in_place && spec.tensors.size() > 1)
        move_once({&spec, 1}, name_of(operation), name);
    auto identity = identify(spec, check);
    return {.name = std::move(identity.name),
            .number = spec.number,
            .description = std::move(identity.description),
            .tensors = std::move(spec.tensors),
            .outputs = std::move(spec.outputs),
            .splits = std::move(spec.splits),
            .keep_alive = std::move(spec.keep_alive),
            .device = std::move(device)};
}

namespace {

/// Marks on each stream that it has the tensors' contents.
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

std::shared_ptr<engine::Pending> submit(OperationSpec&& spec, bool caller_waits) {
    const auto set = spec.set;
    const auto stream = spec.stream;
    const auto timeout = spec.timeout;
    auto request = prepare(std::move(spec));
    set_deadline(request, timeout);
    return submit(*set, std::move(request), as_span(stream), caller_waits);
}

std::shared_ptr<engine::Pending> submit_point_to_point(SetRuntime& set, const TensorView& tensor,
                                                       engine::Route route,
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
    engine::Request request{.name = fmt::format("{} {} {}", route.sending ? "send" : "recv",
                                                route.sending ? "to" : "from", route.peer),
                            .tensors = {tensor},
                            .keep_alive = options.keep_alive,
                            .device = std::move(device)};
    set_deadline(request, options.timeout);
    if (caller_waits) engine::ReleaseThread::check_wait(request);
    if (request.device) mark_ready(request, as_span(options.stream), check);
    route.peer = *group_rank;
    return set.engine().submit(std::move(request), route, caller_waits);
}

}  // namespace guozhuang::api
