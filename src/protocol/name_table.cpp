#include "protocol/name_table.hpp"
#include "base/error_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <guozhuang/error.hpp>
#include <ranges>
#include <string_view>
#include <utility>

namespace guozhuang::protocol {

NameTable::NameTable(std::span<const int> children) {
    for (const int child : children) applied_[child] = 0;
}

NameTable::NameTable(const NameTable& other)
    : rows_(other.rows_),
      retired_(other.retired_),
      applied_(other.applied_),
      next_id_(other.next_id_) {
    for (auto& [name, known] : rows_)
        if (known.id != 0) with_ids_[known.id] = &known;
}

void NameTable::let_go(KnownName& known) {
    if (!known.is_in_use()) rows_.erase(Name(known.name));
}

const Meaning* NameTable::retired_meaning(std::uint32_t id) const {
    const auto retired = retired_.find(id);
    return retired == retired_.end() ? nullptr : &retired->second.meaning;
}

void NameTable::use(KnownName& known, std::uint32_t id, const SharedDescription& description,
                    std::uint64_t position) {
    if (known.described != description) known.fingerprint = fingerprint(encode(*description));
    if (known.id != id) {
        with_ids_[id] = &known;
        with_ids_.erase(known.id);
    }
    known.id = id;
    known.described = description;
    known.last_used = position;
}

void NameTable::retire(const Item& item, std::uint64_t position) {
    auto* const known = find(item.name);
    if (known == nullptr || item.id == 0 || known->id != item.id)
        throw Error(ErrorCode::wire,
                    fmt::format("the log forgets {} twice", base::quote(item.name.text())));
    with_ids_.erase(known->id);
    Meaning meaning{known->name, std::exchange(known->described, nullptr), known->fingerprint};
    known->id = 0;
    if (!applied_.empty()) retired_[item.id] = {std::move(meaning), position};
    let_go(*known);
}

void NameTable::child_has_applied(int child, std::uint64_t position) {
    auto& known = applied_.at(child);
    known = std::max(known, position);
    if (retired_.empty()) return;
    const auto slowest = std::ranges::min(applied_ | std::views::values);
    std::erase_if(retired_, [&](const auto& each) { return each.second.position <= slowest; });
}

std::vector<Item> NameTable::surplus(std::size_t most) const {
    if (id_count() <= most) return {};
    std::vector<const KnownName*> candidates;
    for (const auto& [name, known] : rows_)
        if (known.id != 0 && !known.tally.is_under_way()) candidates.push_back(&known);
    std::ranges::sort(candidates, {}, [](const KnownName* known) {
        return std::pair(known->last_used, std::string_view(known->name.text()));
    });
    candidates.resize(std::min(candidates.size(), id_count() - most + most / 8));
    std::vector<Item> items;
    for (const auto* known : candidates) items.push_back({known->name, known->id});
    return items;
}

}  // namespace guozhuang::protocol
