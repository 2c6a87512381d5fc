#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sft::worker {

// The id that git gives a file: SHA-1 over "blob SIZE", a zero byte and the bytes, as 40 digits. A
// hub names small files by it. SHA-1 is no protection against forgery; what it is compared with
// comes over TLS from the same hub.
std::string GitBlobId(std::string_view bytes);

}  // namespace sft::worker
