#include "common/hub/patience.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "common/base/duration.h"
#include "common/base/random.h"

namespace sft::hub {

using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr seconds kLongestBackoff{30};
// What a hub may ask us to wait at once.
constexpr seconds kLongestAsked{600};
constexpr milliseconds kStopInterval{200};

// May be answered otherwise later.
bool MayPass(int status) {
  return status == 408 || status == 425 || status == 429 || status >= 500;
}

std::optional<int64_t> Number(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end == text.data() || number < 0) return std::nullopt;
  return number;
}

// How long the answer asks to wait: Retry-After in seconds, else the t of `RateLimit:
// "api";r=0;t=55`.
std::optional<Nanos> AskedWait(const HttpResponse& response) {
  auto wait = Number(response.Header("retry-after"));
  if (!wait) {
    const std::string_view limit = response.Header("ratelimit");
    const size_t at = limit.find(";t=");
    if (at != limit.npos) wait = Number(limit.substr(at + 3));
  }
  if (!wait) return std::nullopt;
  return std::min<Nanos>(seconds(*wait), kLongestAsked);
}

}  // namespace

Nanos Jittered(Nanos wait) {
  return wait / 2 + Nanos(static_cast<int64_t>(static_cast<double>(wait.count()) / 2 *
                                               (RandomWord() / 4294967296.0)));
}

absl::StatusOr<std::string> ReadBody(HttpBody& body, size_t most) {
  std::string text;
  char buffer[16 << 10];
  while (true) {
    SFT_ASSIGN_OR_RETURN(const size_t count, body.Read(buffer, sizeof(buffer)));
    if (count == 0) return text;
    text.append(buffer, count);
    if (text.size() > most) return ResourceExhausted("the answer is longer than it may be");
  }
}

std::string Escaped(std::string_view path) {
  std::string text;
  for (const char c : path) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_' || c == '.' || c == '~' || c == '/';
    text += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return text;
}

std::string EscapedPart(std::string_view part) {
  std::string text = Escaped(part);
  for (size_t at = 0; (at = text.find('/', at)) != text.npos;) text.replace(at, 1, "%2F");
  return text;
}

absl::StatusOr<HttpResponse> AskPatiently(
    const Patience& patience, const StopCheck& stop,
    const std::function<absl::StatusOr<HttpResponse>()>& send) {
  const MonoTime begin = patience.clock.Mono();
  Nanos backoff = milliseconds(500);
  while (true) {
    if (stop && stop()) return Aborted(patience.what + ": stopped");
    absl::StatusOr<HttpResponse> response = send();
    Nanos wait = Jittered(backoff);
    absl::Status failed;
    if (response.ok() && MayPass(response->status)) {
      const std::optional<Nanos> asked = AskedWait(*response);
      // The hub counts all that come from one address: who asks sooner waits longer.
      if (asked) wait = *asked + Jittered(std::min<Nanos>(*asked / 4, seconds(10)));
      failed = Unavailable(fmt::format(
          "{}: {} answers {}{}", patience.what, patience.endpoint, response->status,
          response->status == 429 ? " (too many requests from this address or token)" : ""));
    } else if (response.ok() || !absl::IsUnavailable(response.status())) {
      return response;
    } else {
      failed = response.status();
    }
    if (patience.clock.Mono() - begin + wait > patience.patience) return failed;
    if (patience.on_wait) {
      patience.on_wait(fmt::format("{}; asks again in {:.0f} s", Message(failed), SecondsOf(wait)));
    }
    for (Nanos left = wait; left > Nanos(0); left -= kStopInterval) {
      if (stop && stop()) return Aborted(patience.what + ": stopped");
      patience.clock.Sleep(std::min<Nanos>(left, kStopInterval));
    }
    backoff = std::min<Nanos>(backoff * 2, kLongestBackoff);
  }
}

}  // namespace sft::hub
