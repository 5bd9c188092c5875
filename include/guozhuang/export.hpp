#pragma once

/// Marks the symbols that the library exports; all others are hidden.
#define GUOZHUANG_API __attribute__((visibility("default")))
