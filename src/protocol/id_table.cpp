#include "protocol/id_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <guozhuang/error.hpp>
#include <ranges>
#include <utility>

namespace guozhuang::protocol {

IdTable::IdTable(std::span<const int> children) {
    for (const int child : children) applied_[child] = 0;
}

std::uint32_t IdTable::id_of(const std::string& name) const {
    const auto row = rows_.find(name);
    return row == rows_.end() ? 0 : row->second.id;
}

SharedDescription IdTable::description_of(const std::string& name) const {
    const auto row = rows_.find(name);
    return row == rows_.end() ? nullptr : row->second.description;
}

const std::string* IdTable::name_of(std::uint32_t id) const {
    const auto name = names_.find(id);
    return name == names_.end() ? nullptr : &name->second;
}

std::optional<IdTable::Meaning> IdTable::meaning_of(std::uint32_t id) const {
    if (const auto* name = name_of(id))
        if (auto description = description_of(*name)) return Meaning{*name, std::move(description)};
    if (const auto retired = retired_.find(id); retired != retired_.end())
        return retired->second.meaning;
    return std::nullopt;
}

void IdTable::use(const Item& item, SharedDescription description, std::uint64_t position) {
    names_[item.id] = item.name;
    rows_[item.name] = {item.id, std::move(description), position};
}

void IdTable::retire(const Item& item, std::uint64_t position) {
    auto row = rows_.extract(item.name);
    if (row.empty())
        throw Error(ErrorCode::wire, fmt::format("the log forgets '{}' twice", item.name));
    names_.erase(item.id);
    if (!applied_.empty())
        retired_[item.id] = {{item.name, std::move(row.mapped().description)}, position};
}

void IdTable::child_has_applied(int child, std::uint64_t position) {
    auto& known = applied_.at(child);
    known = std::max(known, position);
    const auto slowest = std::ranges::min(applied_ | std::views::values);
    std::erase_if(retired_, [&](const auto& each) { return each.second.position <= slowest; });
}

std::vector<Item> IdTable::surplus(
    std::size_t most, const std::function<bool(const std::string& name)>& is_busy) const {
    if (size() <= most) return {};
    std::vector<std::pair<std::uint64_t, std::string>> candidates;
    for (const auto& [name, row] : rows_)
        if (!is_busy(name)) candidates.emplace_back(row.last_used, name);
    std::ranges::sort(candidates);
    candidates.resize(std::min(candidates.size(), size() - most + most / 8));
    std::vector<Item> items;
    for (const auto& [last_used, name] : candidates) items.push_back({name, id_of(name)});
    return items;
}

}  // namespace guozhuang::protocol
