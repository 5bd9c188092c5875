#include "protocol/description.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <set>

#include "base/error_text.hpp"

namespace guozhuang::protocol {

std::string_view name_of(OperationKind operation) noexcept {
    constexpr std::string_view names[] = {"allreduce",          "all_gather",         "broadcast",
                                          "all_to_all",         "reduce_scatter",     "barrier",
                                          "create_process_set", "remove_process_set", "join"};
    return names[static_cast<std::size_t>(operation)];
}

Bytes encode(const Description& description) {
    Writer out;
    out.enumerator(description.operation);
    out.enumerator(description.op);
    out.real(description.prescale);
    out.real(description.postscale);
    out.signed_number(description.root);
    out.enumerator(description.device);
    out.number(description.group ? 1 : 0);
    out.ranks(description.ranks);
    out.number(description.tensors.size());
    for (const auto& tensor : description.tensors) {
        out.string(tensor.name);
        out.enumerator(tensor.dtype);
        out.number(tensor.shape.size());
        for (const auto extent : tensor.shape) out.signed_number(extent);
    }
    out.number(description.agreements.size());
    for (const auto& agreement : description.agreements)
        for (const auto* text : {&agreement.tensor, &agreement.what, &agreement.value})
            out.string(*text);
    out.string(description.discarded);
    return out.take();
}

Description decode_description(std::span<const std::byte> bytes) {
    Reader in(bytes);
    Description description;
    description.operation = in.enumerator(OperationKind::join);
    description.op = in.enumerator(ReduceOp::adasum);
    description.prescale = in.real();
    description.postscale = in.real();
    description.root = static_cast<int>(
        in.signed_number(std::numeric_limits<int>::min(), std::numeric_limits<int>::max()));
    description.device = in.enumerator(DeviceKind::cuda);
    description.group = in.number(1) == 1;
    description.ranks = in.ranks(max_ranks);
    const auto tensors = in.count(max_tensors);
    for (std::size_t i = 0; i < tensors; ++i) {
        TensorDescription tensor;
        tensor.name = in.string();
        tensor.dtype = in.enumerator(DType::u64);
        tensor.shape.resize(in.count(max_dimensions));
        for (auto& extent : tensor.shape) extent = in.signed_number();
        description.tensors.push_back(std::move(tensor));
    }
    const auto agreements = in.count(max_description_bytes);
    for (std::size_t i = 0; i < agreements; ++i) {
        Agreement agreement;
        for (auto* text : {&agreement.tensor, &agreement.what, &agreement.value})
            *text = in.string();
        description.agreements.push_back(std::move(agreement));
    }
    description.discarded = in.string();
    in.expect_end();
    return description;
}

std::uint64_t fingerprint(std::span<const std::byte> encoded) noexcept {
    return XXH3_64bits(encoded.data(), encoded.size());
}

EncodedDescription::EncodedDescription(Description description)
    : Description(std::move(description)),
      bytes(encode(*this)),
      fingerprint(protocol::fingerprint(bytes)) {}

EncodedDescription::EncodedDescription(std::span<const std::byte> encoded)
    : Description(decode_description(encoded)),
      bytes(encoded.begin(), encoded.end()),
      fingerprint(protocol::fingerprint(bytes)) {}

SharedDescription share(Description description) {
    return std::make_shared<const EncodedDescription>(std::move(description));
}

bool are_same(const SharedDescription& one, const SharedDescription& other) noexcept {
    return one == other || one->bytes == other->bytes;
}

namespace {

std::string print(const Shape& shape) {
    if (!shape.empty() && shape[0] == -1)
        return fmt::format("[any{}{}]", shape.size() > 1 ? ", " : "",
                           fmt::join(std::span(shape).subspan(1), ", "));
    return fmt::format("[{}]", fmt::join(shape, ", "));
}

/// What may differ, in the order in which it is looked at: the plural of its name, and its value
/// for people.
struct Aspect {
    std::string_view plural;
    std::function<std::string(const Description&)> value;
};

/// "layer3.weight"; "loss[3]" where a group numbers its tensors.
std::string tensor_name(std::string_view request, const Description& description, std::size_t i) {
    const auto& own = description.tensors[i].name;
    if (!own.empty()) return own;
    return description.group ? fmt::format("{}[{}]", request, i) : std::string(request);
}

/// The names of tensors that only some of the descriptions have.
std::set<std::string> lone_tensors(std::span<const SharedDescription> descriptions) {
    std::map<std::string, std::size_t> owners;
    for (const auto& description : descriptions)
        for (const auto& tensor : description->tensors) ++owners[tensor.name];
    owners.erase("");
    std::set<std::string> lone;
    for (const auto& [name, count] : owners)
        if (count < descriptions.size()) lone.insert(name);
    return lone;
}

/// "'conv.bias', 'fc.bias'": those of the names that the description has.
std::string list_tensors(const Description& description, const std::set<std::string>& among) {
    constexpr std::size_t most = 5;
    std::vector<std::string> names;
    for (const auto& tensor : description.tensors)
        if (among.contains(tensor.name)) names.push_back(fmt::format("'{}'", tensor.name));
    if (names.empty()) return "none";
    if (names.size() <= most) return fmt::format("{}", fmt::join(names, ", "));
    return fmt::format("{} and {} more", fmt::join(std::span(names).first(most), ", "),
                       names.size() - most);
}

std::vector<Aspect> aspects_of_request(std::span<const SharedDescription> descriptions) {
    return {
        {"operations", [](const Description& d) { return std::string(name_of(d.operation)); }},
        {"reduce ops", [](const Description& d) { return std::string(name_of(d.op)); }},
        {"roots", [](const Description& d) { return std::to_string(d.root); }},
        {"prescales", [](const Description& d) { return fmt::format("{}", d.prescale); }},
        {"postscales", [](const Description& d) { return fmt::format("{}", d.postscale); }},
        {"device kinds", [](const Description& d) { return std::string(name_of(d.device)); }},
        {"kinds of request",
         [](const Description& d) { return std::string(d.group ? "a group" : "a single tensor"); }},
        {"ranks", [](const Description& d) { return fmt::format("{}", fmt::join(d.ranks, ",")); }},
        {"tensors", [lone = lone_tensors(descriptions)](
                        const Description& d) { return list_tensors(d, lone); }},
        {"numbers of tensors",
         [](const Description& d) { return std::to_string(d.tensors.size()); }},
    };
}

std::vector<Aspect> aspects_of_tensor(std::string_view request, std::size_t i) {
    return {
        {"tensor names",
         [request, i](const Description& d) {
             return fmt::format("'{}'", tensor_name(request, d, i));
         }},
        {"dtypes", [i](const Description& d) { return std::string(name_of(d.tensors[i].dtype)); }},
        {"shapes", [i](const Description& d) { return print(d.tensors[i].shape); }},
    };
}

/// Of the i-th agreement of a description; "none" where another has something else in its place.
Aspect aspect_of_agreement(const Agreement& one, std::size_t i) {
    return {one.what, [&one, i](const Description& d) {
                const bool has = i < d.agreements.size() && d.agreements[i].tensor == one.tensor &&
                                 d.agreements[i].what == one.what;
                return has ? d.agreements[i].value : std::string("none");
            }};
}

using Side = std::pair<std::string, std::vector<int>>;  // a value, and the ranks that gave it

/// The values of one aspect with their ranks, in the order of the lowest rank.
std::vector<Side> sides_of(const Aspect& aspect, std::span<const SubmissionGroup> groups) {
    std::vector<Side> sides;
    for (const auto& group : groups) {
        auto value = aspect.value(*group.description);
        auto side = std::find_if(sides.begin(), sides.end(),
                                 [&](const Side& s) { return s.first == value; });
        if (side == sides.end())
            side = sides.emplace(sides.end(), std::move(value), std::vector<int>{});
        side->second.insert(side->second.end(), group.ranks.begin(), group.ranks.end());
    }
    for (auto& side : sides) std::sort(side.second.begin(), side.second.end());
    std::sort(sides.begin(), sides.end(),
              [](const Side& a, const Side& b) { return a.second.front() < b.second.front(); });
    return sides;
}

std::string sentence(const Description& first, std::string_view tensor, const Aspect& aspect,
                     std::span<const Side> sides) {
    auto subject = fmt::format("'{}'", tensor);
    if (first.operation == OperationKind::create_process_set && aspect.plural == "ranks")
        subject = "process set";
    else if (aspect.plural != "operations")
        subject = fmt::format("{} {}", name_of(first.operation), subject);
    auto text = fmt::format("{}: {} differ: ", subject, aspect.plural);
    for (std::size_t i = 0; i < sides.size(); ++i)
        text += fmt::format("{}{} on {}", i == 0 ? "" : "; ", sides[i].first,
                            base::list_ranks(sides[i].second));
    return text;
}

}  // namespace

std::string describe_mismatch(std::string_view name, std::span<const SubmissionGroup> groups,
                              std::string& tensor) {
    std::vector<SharedDescription> descriptions;
    for (const auto& group : groups) descriptions.push_back(group.description);
    const auto& first = *descriptions.front();
    tensor = name;
    for (const auto& aspect : aspects_of_request(descriptions)) {
        const auto sides = sides_of(aspect, groups);
        if (sides.size() > 1) return sentence(first, tensor, aspect, sides);
    }
    for (std::size_t i = 0; i < first.tensors.size(); ++i) {
        tensor = tensor_name(name, first, i);
        for (const auto& aspect : aspects_of_tensor(name, i)) {
            const auto sides = sides_of(aspect, groups);
            if (sides.size() > 1) return sentence(first, tensor, aspect, sides);
        }
    }
    const auto& longest =
        std::ranges::max(descriptions, {}, [](const auto& d) { return d->agreements.size(); });
    for (std::size_t i = 0; i < longest->agreements.size(); ++i) {
        const auto aspect = aspect_of_agreement(longest->agreements[i], i);
        const auto sides = sides_of(aspect, groups);
        tensor = longest->agreements[i].tensor.empty() ? name : longest->agreements[i].tensor;
        if (sides.size() > 1) return sentence(first, tensor, aspect, sides);
    }
    tensor = name;
    // The bytes differ though no aspect does: those of two NaNs, say.
    return fmt::format("'{}': the requests differ", name);
}

std::string describe_discard(std::string_view name, std::span<const SubmissionGroup> groups) {
    auto text =
        fmt::format("{} '{}' was discarded", name_of(groups.front().description->operation), name);
    for (const auto& group : groups)
        text += fmt::format("{} by {}: {}", &group == &groups.front() ? "" : ";",
                            base::list_ranks(group.ranks), group.description->discarded);
    return text;
}

}  // namespace guozhuang::protocol
