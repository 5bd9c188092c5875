#include "base/exception_text.hpp"

#include <cstdlib>
#include <cxxabi.h>
#include <fmt/format.h>
#include <guozhuang/error.hpp>
#include <memory>
#include <typeinfo>

namespace guozhuang::base {
namespace {

std::string name_of(const std::type_info& type) {
    int status = 0;
    const std::unique_ptr<char, decltype(&std::free)> name(abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), &std::free);
    return name ? name.get() : type.name();
}

}  // namespace

std::string describe(const std::exception_ptr& exception) {
    try {
        std::rethrow_exception(exception);
    } catch (const Error& error) {
        return error.what();
    } catch (const std::exception& error) {
        return fmt::format("{}: {}", name_of(typeid(error)), error.what());
    } catch (...) {
        const auto* type = abi::__cxa_current_exception_type();
        return type != nullptr ? name_of(*type) : "an unknown exception";
    }
}

}  // namespace guozhuang::base
