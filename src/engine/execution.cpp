#include "engine/execution.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <guozhuang/error.hpp>
#include <new>

#include "base/error_text.hpp"
#include "device/host/neutral.hpp"
#include "device/reduction.hpp"

namespace guozhuang::engine {
namespace {

constexpr std::size_t little_bytes = 1u << 20;

/// "allreduce 'grad0' and 11 others: "
std::string describe(const FailedWork& work) {
    if (work.operation.empty()) return {};
    std::string text(work.operation);
    if (!work.tensor.empty()) text += " " + base::quote(work.tensor);
    if (work.others > 0)
        text += fmt::format(" and {} other{}", work.others, work.others == 1 ? "" : "s");
    return text + ": ";
}

/// Whether it comes from a device, the transport or the like, which know nothing of operations.
bool names_no_work(const Error& error) {
    switch (error.code()) {
        case ErrorCode::invalid_argument:
        case ErrorCode::wire:
        case ErrorCode::out_of_memory:
        case ErrorCode::unavailable:
        case ErrorCode::internal: return error.operation().empty();
        default: return false;
    }
}

}  // namespace

Request identity_input(const protocol::Item& item, Device device) {
    auto description = *item.description;
    description.prescale = 1;  // it would change the neutral value
    std::vector<TensorView> tensors;
    auto memory = std::make_shared<std::vector<std::vector<std::byte>>>();
    for (const auto& [name, dtype, described] : description.tensors) {
        auto shape = described;
        if (!shape.empty() && shape.front() < 0) shape.front() = 0;
        auto& tensor = tensors.emplace_back(nullptr, dtype, shape, device);
        if (device.kind != DeviceKind::host) continue;
        auto& elements = memory->emplace_back(tensor.bytes());
        device::fill_neutral(dtype, description.op, elements);
        tensor.data = elements.data();
    }
    auto splits = description.splits;
    return {.kind = Request::Kind::neutral,
            .name = item.name,
            .description = share(std::move(description)),
            .tensors = SharedTensors(tensors),
            .splits = std::move(splits),
            .keep_alive = std::move(memory)};
}

std::span<const std::byte> contribution_of(const Request& request) {
    const auto& description = *request.description;
    if (description.operation != OperationKind::allreduce || request.device ||
        request.tensors.size() != 1 || description.op == ReduceOp::adasum ||
        description.prescale != 1)
        return {};
    const auto& tensor = request.tensors.front();
    if (device::averages_in_i64(description.op, tensor.dtype)) return {};
    return tensor.memory();
}

bool contributes_neutrally(const protocol::LogEntry& entry, const Context& context) {
    return std::ranges::any_of(entry.absent, [&](int group_rank) {
        return context.group_ranks.world_rank(group_rank) == context.rank;
    });
}

const Pending* pending_of(const protocol::Item& item) noexcept {
    return static_cast<const Pending*>(item.submitter.get());
}

Requests take_requests(protocol::LogEntry& entry) {
    Requests requests;
    for (auto& item : entry.items)
        if (item.submitter)
            requests.push_back(std::static_pointer_cast<Pending>(std::move(item.submitter)));
    return requests;
}

bool moves_little(const protocol::LogEntry& entry, int ranks) {
    if (entry.kind != protocol::LogEntry::Kind::execute) return true;
    if (!entry.absent.empty()) return false;
    std::size_t bytes = 0;
    for (const auto& item : entry.items) {
        if (!item.submitter) return true;  // this rank has not submitted it, and will say so
        const auto& request = pending_of(item)->request();
        if (request.action || request.device) return false;
        const bool gathers = request.description->operation == OperationKind::all_gather;
        for (const auto& tensor : request.tensors)
            bytes += tensor.bytes() * static_cast<std::size_t>(gathers ? ranks : 1);
    }
    return bytes <= little_bytes;
}

Bundle bundle_of(const protocol::LogEntry& entry,
                 std::span<const std::shared_ptr<Pending>> requests,
                 const protocol::GroupRanks& group_ranks, int ranks) {
    const auto& description = *requests.front()->request().description;
    Bundle bundle{.description = &description,
                  // The root is in the group: the caller has checked that.
                  .root = group_ranks.group_rank_of(description.root).value_or(0),
                  .contributors = ranks - static_cast<int>(entry.absent.size()),
                  .policy = entry.policy,
                  .contributions = entry.contributions,
                  .entries = {}};
    std::size_t tensors = 0;
    for (const auto& pending : requests) tensors += pending->request().tensors.size();
    bundle.entries.reserve(tensors);
    for (const auto& pending : requests) {
        const auto& request = pending->request();
        for (std::size_t i = 0; i < request.tensors.size(); ++i) {
            auto& moved = bundle.entries.emplace_back(
                BundleEntry{.tensor = request.tensors[i], .splits = request.splits});
            if (pending->has_results()) moved.result = &pending->result(i);
            if (const auto* output = pending->output(i)) moved.output = output->memory();
        }
    }
    return bundle;
}

trace::TimelineFacts facts_of(const Request& request,
                              const std::shared_ptr<const std::string>& set) {
    trace::TimelineFacts facts{.operation = name_of(request.description->operation),
                               .tensors = request.tensors.size(),
                               .set = set};
    for (const auto& tensor : request.tensors) facts.bytes += tensor.bytes();
    return facts;
}

trace::TimelineFacts facts_of(const Bundle& bundle, const std::shared_ptr<const std::string>& set) {
    trace::TimelineFacts facts{.operation = name_of(bundle.description->operation),
                               .tensors = bundle.entries.size(),
                               .set = set};
    for (const auto& entry : bundle.entries) facts.bytes += entry.tensor.bytes();
    return facts;
}

std::exception_ptr error_of(const protocol::LogEntry& entry,
                            const protocol::GroupRanks& group_ranks) {
    try {  // std::make_exception_ptr copies, and would make a std::bad_alloc of a lack of memory
        throw Error(
            entry.code, entry.text,
            {.tensor = entry.tensor,
             .operation = entry.operation,
             .ranks = protocol::ranks_led_by(entry.culprit, group_ranks.world_ranks(entry.ranks))});
    } catch (const Error&) {
        return std::current_exception();
    }
}

FailedWork work_of(std::span<const std::shared_ptr<Pending>> requests) noexcept {
    const auto& first = requests.front()->request();
    return {name_of(first.description->operation), first.name.text(), requests.size() - 1};
}

namespace {

/// Made in advance and never destroyed. A caller that got std::bad_alloc would try again.
const auto& no_memory_for_error = *new std::exception_ptr(
    std::make_exception_ptr(Error(ErrorCode::out_of_memory, "not enough memory")));

}  // namespace

std::exception_ptr as_error(const std::exception_ptr& cause, const FailedWork& work,
                            int rank) noexcept try {
    const auto error = [&](const Error& failed) {
        const auto& ranks = failed.ranks();
        try {
            throw Error(failed.code(), describe(work) + failed.what(),
                        {.tensor = std::string(work.tensor),
                         .operation = std::string(work.operation),
                         .ranks = ranks.empty() ? std::vector{rank} : ranks},
                        failed.where());
        } catch (const Error&) {
            return std::current_exception();
        }
    };
    try {
        std::rethrow_exception(cause);
    } catch (const Error& known) {
        if (work.operation.empty() || !names_no_work(known)) return cause;
        try {
            return error(known);
        } catch (const std::bad_alloc&) {
            return cause;
        }
    } catch (const std::bad_alloc&) {
        return error(Error(ErrorCode::out_of_memory, "not enough memory"));
    } catch (const std::exception& other) {
        return error(Error(ErrorCode::internal, other.what()));
    } catch (...) {
        return error(Error(ErrorCode::internal, "an unknown exception"));
    }
} catch (...) {
    return no_memory_for_error;
}

}  // namespace guozhuang::engine
