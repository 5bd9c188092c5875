#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "device/device.hpp"
#include "device/nccl.hpp"

namespace guozhuang::device {

/// Driver::nccl(). If `auto` finds no NCCL in the loader's folders, the copy that pip has installed
/// for a Python in PATH.
OrReason<Nccl*> find_nccl(Driver& driver, const std::string& wanted);

/// The files with this name in the packages of the Pythons in these folders, separated as in PATH.
std::vector<std::string> files_in_packages(const std::string& name, std::string_view programs);

}  // namespace guozhuang::device
