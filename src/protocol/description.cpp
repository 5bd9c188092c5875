#include "protocol/description.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <limits>
#include <map>
#include <set>

#include "base/error_text.hpp"

namespace guozhuang::protocol {

Bytes encode(const Description& description) {
    Writer out;
    write(out, description);
    return out.take();
}

Description decode_description(std::span<const std::byte> bytes) {
    Reader in(bytes);
    Description description;
    read(in, description);
    in.expect_end();
    return description;
}

// The fingerprint covers every field in which two allreduces of one host tensor can differ. If you
// add a field, check whether the fingerprint must cover it too.
static_assert(std::tuple_size_v<decltype(fields_of<Description>)> == 12 &&
              std::tuple_size_v<decltype(fields_of<TensorDescription>)> == 3);
std::uint64_t fingerprint_of_allreduce(std::string_view name, std::uint64_t number,
                                       const Description& description, DType dtype,
                                       const Shape& shape) noexcept {
    constexpr std::size_t most_words = 6 + max_dimensions;
    std::array<std::uint64_t, most_words> words;
    words[0] = number;
    words[1] = static_cast<std::uint64_t>(dtype);
    words[2] = static_cast<std::uint64_t>(description.op);
    words[3] = std::bit_cast<std::uint64_t>(description.prescale);
    words[4] = std::bit_cast<std::uint64_t>(description.postscale);
    words[5] = shape.size();
    const auto end = std::ranges::copy(shape, words.begin() + 6).out;
    const auto bytes = static_cast<std::size_t>(end - words.begin()) * sizeof words[0];
    return XXH3_64bits_withSeed(name.data(), name.size(), XXH3_64bits(words.data(), bytes));
}

std::uint64_t fingerprint(std::span<const std::byte> encoded) noexcept {
    return XXH3_64bits(encoded.data(), encoded.size());
}

SharedDescription share(Description description) {
    return std::make_shared<const Description>(std::move(description));
}

namespace {

/// The same bits: a NaN is equal to itself, and 0 is not -0.
template <class Value>
bool is_same(const Value& one, const Value& other) noexcept {
    if constexpr (std::is_same_v<Value, double>)
        return std::bit_cast<std::uint64_t>(one) == std::bit_cast<std::uint64_t>(other);
    else
        return one == other;
}

/// Whether the fields that are_compared(value) selects are the same.
template <class AreCompared>
bool have_same_fields(const Description& one, const Description& other,
                      const AreCompared& are_compared) noexcept {
    bool same = true;
    for_each_field<Description>([&](const auto& field) {
        const auto& value = one.*field.member;
        if (are_compared(value)) same = same && is_same(value, other.*field.member);
    });
    return same;
}

}  // namespace

bool are_same(const SharedDescription& one, const SharedDescription& other) noexcept {
    return one == other ||
           (one && other && have_same_fields(*one, *other, [](const auto&) { return true; }));
}

bool are_same_but_for_tensors(const Description& one, const Description& other) noexcept {
    const auto are_compared = []<class Value>(const Value&) {
        return !std::is_same_v<Value, std::vector<TensorDescription>> &&
               !std::is_same_v<Value, std::vector<Agreement>>;
    };
    return &one == &other || have_same_fields(one, other, are_compared);
}

namespace {

template <class Enum>
    requires std::is_enum_v<Enum>
std::string print(Enum value) {
    return std::string(name_of(value));
}
template <class Number>
    requires std::is_arithmetic_v<Number>
std::string print(Number value) {
    return fmt::format("{}", value);
}
std::string print(bool group) {
    return group ? "a group" : "a single tensor";
}
std::string print(const std::string& text) {
    return text;
}
std::string print(const std::vector<int>& ranks) {
    return fmt::format("{}", fmt::join(ranks, ","));
}
std::string print(const std::vector<std::int64_t>& splits) {
    return splits.empty() ? "none" : fmt::format("[{}]", fmt::join(splits, ", "));
}
std::string print(const Shape& shape) {
    if (!shape.empty() && shape[0] == -1)
        return fmt::format("[any{}{}]", shape.size() > 1 ? ", " : "",
                           fmt::join(std::span(shape).subspan(1), ", "));
    return fmt::format("[{}]", fmt::join(shape, ", "));
}

/// One way in which requests may differ: the tensor concerned, the plural of what differs, and a
/// function that prints its value.
struct Aspect {
    std::string tensor;
    std::string_view plural;
    std::function<std::string(const Description&)> value;
};

/// "layer3.weight"; "loss[3]" if a group numbers its tensors.
std::string tensor_name(std::string_view request, const Description& description, std::size_t i) {
    const auto& own = description.tensors[i].name;
    if (!own.empty()) return own;
    return description.group ? fmt::format("{}[{}]", request, i) : std::string(request);
}

/// The names of tensors that only some of the groups have.
std::set<std::string> lone_tensors(std::span<const SubmissionGroup> groups) {
    std::map<std::string, std::size_t> owners;
    for (const auto& group : groups)
        for (const auto& tensor : group.description->tensors) ++owners[tensor.name];
    owners.erase("");
    std::set<std::string> lone;
    for (const auto& [name, count] : owners)
        if (count < groups.size()) lone.insert(name);
    return lone;
}

/// "'conv.bias', 'fc.bias'": the names that the description contains.
std::string list_tensors(const Description& description, const std::set<std::string>& among) {
    constexpr std::size_t most = 5;
    std::vector<std::string> names;
    for (const auto& tensor : description.tensors)
        if (among.contains(tensor.name)) names.push_back(base::quote(tensor.name));
    if (names.empty()) return "none";
    if (names.size() <= most) return fmt::format("{}", fmt::join(names, ", "));
    return fmt::format("{} and {} more", fmt::join(std::span(names).first(most), ", "),
                       names.size() - most);
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
    auto subject = base::quote(tensor);
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

/// Compares one aspect after another of a request that was submitted differently, and keeps the
/// first that differs.
class FirstDifference {
public:
    FirstDifference(std::string_view name, std::span<const SubmissionGroup> groups)
        : name_(name), groups_(groups) {}

    const std::string& name() const noexcept { return name_; }
    std::span<const SubmissionGroup> groups() const noexcept { return groups_; }
    const Description& first() const noexcept { return *groups_.front().description; }

    bool is_found() const noexcept { return !text_.empty(); }
    const std::string& text() const noexcept { return text_; }
    const std::string& tensor() const noexcept { return tensor_; }

    void look_at(const Aspect& aspect) {
        if (is_found()) return;
        const auto sides = sides_of(aspect, groups_);
        if (sides.size() < 2) return;
        tensor_ = aspect.tensor;
        text_ = sentence(first(), tensor_, aspect, sides);
    }

private:
    std::string name_;
    std::span<const SubmissionGroup> groups_;
    std::string text_, tensor_;
};

template <class Value>
void look_at(FirstDifference& difference, const Field<Description, Value>& field) {
    if (field.plural.empty()) return;
    difference.look_at(
        {difference.name(), field.plural,
         [member = field.member](const Description& d) { return print(d.*member); }});
}

/// Compares which tensors there are, then how many, then each tensor; by then the numbers are known
/// to be equal.
void look_at(FirstDifference& difference,
             const Field<Description, std::vector<TensorDescription>>& field) {
    const auto& name = difference.name();
    difference.look_at(
        {name, field.plural, [lone = lone_tensors(difference.groups())](const Description& d) {
             return list_tensors(d, lone);
         }});
    difference.look_at({name, "numbers of tensors",
                        [](const Description& d) { return std::to_string(d.tensors.size()); }});
    const auto& first = difference.first();
    for (std::size_t i = 0; i < first.tensors.size() && !difference.is_found(); ++i) {
        const auto tensor = tensor_name(name, first, i);
        difference.look_at({tensor, "tensor names", [&](const Description& d) {
                                return base::quote(tensor_name(name, d, i));
                            }});
        for_each_field<TensorDescription>([&](const auto& each) {
            if (each.plural.empty()) return;
            difference.look_at({tensor, each.plural, [&](const Description& d) {
                                    return print(d.tensors[i].*each.member);
                                }});
        });
    }
}

/// Compares each agreement of the longest list; the value is "none" for a group that has another
/// one there.
void look_at(FirstDifference& difference, const Field<Description, std::vector<Agreement>>&) {
    const auto count = [](const SubmissionGroup& group) {
        return group.description->agreements.size();
    };
    const auto longest = std::ranges::max_element(difference.groups(), {}, count);
    const auto& agreements = longest->description->agreements;
    for (std::size_t i = 0; i < agreements.size() && !difference.is_found(); ++i) {
        const auto& one = agreements[i];
        difference.look_at({one.tensor.empty() ? difference.name() : one.tensor, one.what,
                            [&](const Description& d) {
                                const bool has = i < d.agreements.size() &&
                                                 d.agreements[i].tensor == one.tensor &&
                                                 d.agreements[i].what == one.what;
                                return has ? d.agreements[i].value : std::string("none");
                            }});
    }
}

}  // namespace

std::string describe_mismatch(std::string_view name, std::span<const SubmissionGroup> groups,
                              std::string& tensor) {
    FirstDifference difference(name, groups);
    for_each_field<Description>([&](const auto& field) { look_at(difference, field); });
    tensor = difference.is_found() ? difference.tensor() : std::string(name);
    // Bits may differ although no aspect does: two NaNs, for instance.
    return difference.is_found() ? difference.text() : base::quote(name) + ": the requests differ";
}

std::string describe_discard(std::string_view name, std::span<const SubmissionGroup> groups) {
    auto text = fmt::format("{} {} was discarded", name_of(groups.front().description->operation),
                            base::quote(name));
    for (const auto& group : groups)
        text += fmt::format("{} by {}: {}", &group == &groups.front() ? "" : ";",
                            base::list_ranks(group.ranks), group.description->discarded);
    return text;
}

}  // namespace guozhuang::protocol
