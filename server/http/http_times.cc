#include "server/http/http_times.h"

#include <algorithm>
#include <chrono>
#include <iterator>

namespace sft::server {
namespace {

enum Route : size_t { kPage, kApi, kOpenAi, kLogin, kHealth, kMetricsPage, kUnread };
constexpr std::string_view kRouteNames[] = {"page",    "api",     "openai", "login",
                                            "healthz", "metrics", "unread"};
constexpr std::string_view kStatusNames[] = {"1xx", "2xx", "3xx", "4xx", "5xx"};

Route RouteOf(std::string_view path) {
  if (path.empty()) return kUnread;
  if (path.starts_with("/api/")) return kApi;
  if (path.starts_with("/v1/")) return kOpenAi;
  if (path.starts_with("/login/") || path.starts_with("/oauth/") || path == "/session") {
    return kLogin;
  }
  if (path == "/healthz") return kHealth;
  return path == "/metrics" ? kMetricsPage : kPage;
}

}  // namespace

void HttpTimes::Count(std::string_view path, int status, Nanos took) {
  const size_t kind = static_cast<size_t>(std::clamp(status / 100, 1, 5)) - 1;
  times_[RouteOf(path)][kind].Observe(std::chrono::duration<double>(took).count());
}

void HttpTimes::Each(const Show& show) const {
  static_assert(std::size(kRouteNames) == kRoutes && std::size(kStatusNames) == kStatuses);
  for (size_t route = 0; route < kRoutes; ++route) {
    for (size_t status = 0; status < kStatuses; ++status) {
      const obs::Histogram::Counts times = times_[route][status].Read();
      if (times.cumulative.back() > 0) show(kRouteNames[route], kStatusNames[status], times);
    }
  }
}

}  // namespace sft::server
