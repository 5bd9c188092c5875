#pragma once

/// Allocations that fail where a test says so: those by operator new, which this program replaces.
namespace guozhuang::test {

/// How many allocations fail once some do.
enum class Lack : bool { one, all_from_then_on };

/// In its scope so many allocations of this thread succeed, and then one fails, or all do.
class Scarcity {
public:
    explicit Scarcity(int allocations, Lack lack = Lack::all_from_then_on) noexcept;
    ~Scarcity();
    Scarcity(const Scarcity&) = delete;
    Scarcity& operator=(const Scarcity&) = delete;

    /// Ends the scarcity of this thread, if there is one.
    static void lift() noexcept;
    /// Whether an allocation has failed since the last construction on this thread.
    static bool has_struck() noexcept;
};

/// The same for the library's threads that drive while no caller waits, taken together: one of
/// their allocations fails. One at a time.
class CoordinatorScarcity {
public:
    explicit CoordinatorScarcity(int allocations) noexcept;
    ~CoordinatorScarcity();
    CoordinatorScarcity(const CoordinatorScarcity&) = delete;
    CoordinatorScarcity& operator=(const CoordinatorScarcity&) = delete;

    bool has_struck() const noexcept;
};

}  // namespace guozhuang::test
