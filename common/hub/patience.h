#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/hub/http.h"
#include "common/hub/hub.h"

// What all questions to a hub have in common: when they are asked again, how an answer is read, and
// how names become parts of an address.

namespace sft::hub {

// How long, and for whom, an answer is waited for.
struct Patience {
  Clock& clock;
  std::string endpoint;
  std::string what;  // what is asked, for errors
  Nanos patience{};
  std::function<void(const std::string&)> on_wait;  // Hub::Options; may be null
};

// What `send` answers, asked again while that may help (408, 425, 429, 5xx, UNAVAILABLE) and the
// patience lasts: UNAVAILABLE then. ABORTED when stopped. Any other answer is the caller's to
// judge.
absl::StatusOr<HttpResponse> AskPatiently(
    const Patience& patience, const StopCheck& stop,
    const std::function<absl::StatusOr<HttpResponse>()>& send);

// Between half and the whole of it, so that a fleet does not come back at once.
Nanos Jittered(Nanos wait);

// RESOURCE_EXHAUSTED where it is longer than `most`.
absl::StatusOr<std::string> ReadBody(HttpBody& body, size_t most);

// A path in an address; and one part of it, or of a query or a form, with its slashes escaped.
std::string Escaped(std::string_view path);
std::string EscapedPart(std::string_view part);

}  // namespace sft::hub
