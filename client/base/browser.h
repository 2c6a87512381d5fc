#pragma once

#include <string>

#include "client/output/console.h"

namespace sft::client {

// Whether somebody sits before a desktop of this machine, who could see a browser.
bool HasDesktop(const Console& console);
// False: there is no browser that can be opened so.
bool OpenBrowser(const std::string& url);

}  // namespace sft::client
