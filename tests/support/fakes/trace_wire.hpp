#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "collectives/concepts/reduce.hpp"
#include "support/fakes/thread_group.hpp"
#include "support/fakes/thread_wire.hpp"

namespace guozhuang::test {

/// An element that is a text: its block's label and the terms added up in it, "b2 = 3+0". The
/// process has one table of texts.
using Symbol = std::uint32_t;

class SymbolTable {
public:
    struct Text {
        std::string label, sum;
    };

    static Symbol make(std::string label, std::string sum = {}) {
        auto& table = instance();
        const std::lock_guard lock(table.mutex_);
        table.texts_.push_back({std::move(label), std::move(sum)});
        return static_cast<Symbol>(table.texts_.size() - 1);
    }
    static Text get(Symbol symbol) {
        auto& table = instance();
        const std::lock_guard lock(table.mutex_);
        return table.texts_.at(symbol);
    }
    static std::string show(Symbol symbol) {
        const auto text = get(symbol);
        if (text.sum.empty()) return text.label;
        return text.label.empty() ? text.sum : text.label + "=" + text.sum;
    }
    static std::string show(std::span<const std::byte> bytes) {
        std::string shown;
        for (std::size_t at = 0; at + sizeof(Symbol) <= bytes.size(); at += sizeof(Symbol)) {
            Symbol symbol;
            std::memcpy(&symbol, bytes.data() + at, sizeof symbol);
            const auto text = show(symbol);
            shown += (shown.empty() || text.empty() ? "" : " ") + text;
        }
        return shown;
    }
    /// left + right, with brackets if the right one is a sum itself. An empty text stays empty.
    static Symbol add(Symbol left, Symbol right) {
        const auto a = get(left), b = get(right);
        if (a.sum.empty()) return left;
        const bool sum = b.sum.find('+') != std::string::npos;
        return make(a.label, a.sum + "+" + (sum ? "(" + b.sum + ")" : b.sum));
    }

private:
    static SymbolTable& instance() {
        static SymbolTable table;
        return table;
    }
    std::mutex mutex_;
    std::vector<Text> texts_;
};

class SymbolReduce final : public Reduce {
public:
    std::size_t element_bytes() const noexcept override { return sizeof(Symbol); }
    std::size_t partial_bytes() const noexcept override { return sizeof(Symbol); }
    void combine(std::span<std::byte> into, std::span<const std::byte> left,
                 std::span<const std::byte> right) const override {
        for (std::size_t i = 0; i < into.size() / sizeof(Symbol); ++i)
            put(into, i, SymbolTable::add(at(left, i), at(right, i)));
    }
    void finish(std::span<std::byte>) const override {}
    void widen(std::span<std::byte> partials, std::span<const std::byte> elements) const override {
        std::memcpy(partials.data(), elements.data(), elements.size());
    }
    void combine_partials(std::span<std::byte> into, std::span<const std::byte> left,
                          std::span<const std::byte> right) const override {
        combine(into, left, right);
    }
    void narrow(std::span<std::byte> elements, std::span<const std::byte> partials) const override {
        std::memcpy(elements.data(), partials.data(), partials.size());
    }
    void combine_tree(std::span<std::byte> into,
                      std::span<const std::span<const std::byte>> inputs) const override {
        for (std::size_t i = 0; i < into.size() / sizeof(Symbol); ++i)
            put(into, i, tree(inputs, i));
    }

private:
    static Symbol at(std::span<const std::byte> from, std::size_t index) {
        Symbol symbol;
        std::memcpy(&symbol, from.data() + index * sizeof symbol, sizeof symbol);
        return symbol;
    }
    static void put(std::span<std::byte> into, std::size_t index, Symbol symbol) {
        std::memcpy(into.data() + index * sizeof symbol, &symbol, sizeof symbol);
    }
    static Symbol tree(std::span<const std::span<const std::byte>> inputs, std::size_t index) {
        if (inputs.size() == 1) return at(inputs[0], index);
        std::size_t half = 1;
        while (half * 2 < inputs.size()) half *= 2;
        return SymbolTable::add(tree(inputs.first(half), index), tree(inputs.subspan(half), index));
    }
};

/// The messages that all ranks sent, and in which step, by the one-port model: a rank starts one
/// message per step, and a message that it waited for ends the step it was sent in. So a step
/// depends on the algorithm's text alone, not on the threads' luck.
class Trace {
public:
    explicit Trace(int size) : sent_(static_cast<std::size_t>(size)) {}

    void sent(int from, int to, std::size_t index, std::size_t step, const std::string& text) {
        const std::lock_guard lock(mutex_);
        steps_[{from, to, index}] = step;
        auto& cells = sent_[static_cast<std::size_t>(from)];
        cells.resize(std::max(cells.size(), step + 1));
        cells[step] = text + (text.empty() ? "-> " : " -> ") + std::to_string(to);
    }
    void staged(int rank, std::size_t step, const std::string& text) {
        const std::lock_guard lock(mutex_);
        auto& cells = sent_[static_cast<std::size_t>(rank)];
        cells.resize(std::max(cells.size(), step + 1));
        cells[step] = text;
    }
    std::size_t step_of(int from, int to, std::size_t index) {
        const std::lock_guard lock(mutex_);
        return steps_.at({from, to, index});
    }

    /// A row per step and a column per rank; the last row is `ends`. If that is wider than a page,
    /// the blocks of a cell stand one below the other.
    std::vector<std::string> figure(const std::vector<std::string>& ends) const {
        std::vector<Row> rows{{""}};
        std::size_t steps = 0;
        for (const auto& cells : sent_) steps = std::max(steps, cells.size());
        for (std::size_t rank = 0; rank < sent_.size(); ++rank)
            rows[0].cells.push_back("rank " + std::to_string(rank));
        for (std::size_t step = 0; step < steps; ++step) {
            rows.push_back({"step " + std::to_string(step)});
            for (const auto& cells : sent_)
                rows.back().cells.push_back(step < cells.size() ? cells[step] : "");
        }
        if (!ends.empty()) rows.push_back({"end", ends});
        if (width_of(rows) > page_width) rows = one_block_a_line(rows);
        std::vector<std::string> lines;
        const std::size_t width = column_width(rows);
        for (const Row& row : rows) lines.push_back(text_of(row, width));
        return lines;
    }

private:
    struct Row {
        std::string label;
        std::vector<std::string> cells = {};
    };
    static constexpr std::size_t page_width = 95, label_width = 8;

    static std::size_t column_width(const std::vector<Row>& rows) {
        std::size_t width = 6;
        for (const Row& row : rows)
            for (const auto& cell : row.cells) width = std::max(width, cell.size());
        return width + 3;
    }
    static std::size_t width_of(const std::vector<Row>& rows) {
        return label_width + rows.front().cells.size() * column_width(rows);
    }
    static std::vector<Row> one_block_a_line(const std::vector<Row>& rows) {
        std::vector<Row> narrow;
        for (Row row : rows) {
            for (bool more = true; std::exchange(more, false);) {
                Row rest{"", std::vector<std::string>(row.cells.size())};
                for (std::size_t i = 0; i < row.cells.size(); ++i) {
                    const auto next = row.cells[i].find(" b");
                    if (next == std::string::npos) continue;
                    rest.cells[i] = row.cells[i].substr(next + 1);
                    row.cells[i].resize(next);
                    more = true;
                }
                narrow.push_back(std::exchange(row, rest));
            }
        }
        return narrow;
    }
    static std::string text_of(const Row& row, std::size_t width) {
        std::string line = row.label;
        line.resize(label_width, ' ');
        for (std::string cell : row.cells) {
            cell.resize(width, ' ');
            line += cell;
        }
        line.erase(line.find_last_not_of(' ') + 1);
        return line;
    }

    std::mutex mutex_;
    std::map<std::tuple<int, int, std::size_t>, std::size_t> steps_;
    std::vector<std::vector<std::string>> sent_;  ///< by rank and step
};

/// Where the part of some ranks is in a figure: their columns, by group rank, if those differ; the
/// step in which they begin; and how many steps a round has.
struct InFigure {
    std::vector<int> columns = {};
    std::size_t first_step = 0, steps_a_round = 1;
    int column(int rank) const {
        return columns.empty() ? rank : columns[static_cast<std::size_t>(rank)];
    }
};

/// A ThreadWire that writes a Trace.
class TraceWire {
public:
    struct Ticket {
        ThreadWire::Ticket inner = {};
        int from = -1;
        std::size_t index = 0;
    };

    TraceWire(Switchboard& board, Trace& trace, int rank, InFigure where = {})
        : wire_(board, rank), trace_(&trace), where_(std::move(where)), step_(where_.first_step) {}

    int rank() const { return wire_.rank(); }
    int size() const { return wire_.size(); }
    std::size_t window_bytes() const { return wire_.window_bytes(); }

    Ticket send(std::span<const std::byte> bytes, int peer) {
        // Noted before it is in flight: the receiver asks for its step.
        trace_->sent(where_.column(rank()), where_.column(peer), sends_[peer]++, step_++,
                     SymbolTable::show(bytes));
        return {wire_.send(bytes, peer), -1, 0};
    }
    Ticket receive(std::span<std::byte> room, int peer) {
        return {wire_.receive(room, peer), peer, receives_[peer]++};
    }
    void wait(Ticket& ticket) {
        wire_.wait(ticket.inner);
        if (ticket.from >= 0)
            step_ = std::max(step_, trace_->step_of(where_.column(ticket.from),
                                                    where_.column(rank()), ticket.index) +
                                        1);
        ticket = {};
    }
    bool done(Ticket& ticket) {
        if (!wire_.done(ticket.inner)) return false;
        wait(ticket);
        return true;
    }

private:
    ThreadWire wire_;
    Trace* trace_;
    InFigure where_;
    std::size_t step_;
    std::map<int, std::size_t> sends_, receives_;
};

/// A ThreadGroup that writes a Trace: what a rank wrote to its room of a round; and what it
/// answered, once, although it writes that to every rank.
class TraceGroup {
public:
    TraceGroup(Stages& stages, Trace& trace, int rank, InFigure where = {})
        : group_(stages, rank), trace_(&trace), where_(std::move(where)) {}

    int rank() const { return group_.rank(); }
    int size() const { return group_.size(); }
    bool ranks_share_cores() const { return group_.ranks_share_cores(); }
    std::uint64_t round() { return group_.round(); }
    std::span<std::byte> room(int peer, std::uint64_t round) { return group_.room(peer, round); }
    std::span<std::byte, note_bytes> note(int peer, std::uint64_t round) {
        return group_.note(peer, round);
    }
    std::size_t put(std::span<std::byte> room, std::span<const std::byte> bytes) {
        put_.insert(put_.end(), bytes.begin(), bytes.end());
        return group_.put(room, bytes);
    }
    void publish(std::size_t bytes) {
        if (put_.size() != bytes)
            throw std::runtime_error("other bytes were put than were published");
        write(round() - 1, put_.size());
        group_.publish(bytes);
    }
    bool await(std::uint64_t round) { return group_.await(round); }
    void answer(std::uint64_t round, std::size_t bytes) {
        if (put_.size() != bytes)
            throw std::runtime_error("other bytes were put than were answered");
        write(round, bytes / static_cast<std::size_t>(size() - 1));
        group_.answer(round, bytes);
    }
    void await_answers(std::uint64_t round) { group_.await_answers(round); }
    static RegionRef locate(std::span<const std::byte>) { return {}; }
    static std::span<std::byte> at(int, const RegionRef&) { return {}; }
    static void yield_to_others() {}

private:
    /// The first bytes, this many, of those that were put since the last call.
    void write(std::uint64_t step, std::size_t bytes) {
        if (bytes > 0)
            trace_->staged(where_.column(rank()), where_.first_step + where_.steps_a_round * step,
                           SymbolTable::show(std::span(put_).first(bytes)));
        put_.clear();
    }

    ThreadGroup group_;
    Trace* trace_;
    InFigure where_;
    std::vector<std::byte> put_;
};

}  // namespace guozhuang::test
