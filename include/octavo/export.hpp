// Which symbols the shared library exports; everything else is hidden.
#pragma once

#if defined(__GNUC__)
#define OCTAVO_API __attribute__((visibility("default")))
#else
#define OCTAVO_API
#endif
