#pragma once

#include <string_view>

namespace sft {

// Whether the text is the address of a mailbox that everybody reads alike: "ann@example.com", in
// ASCII, without quotes, comments and spaces, at most 254 bytes. What is taken can stand in a
// header of a mail and in a command of SMTP as it is.
bool IsMailAddress(std::string_view text);

}  // namespace sft
