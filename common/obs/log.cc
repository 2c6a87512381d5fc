#include "common/obs/log.h"

#include <memory>

#include <fmt/format.h>
#include <pthread.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

namespace sft::obs {

absl::Status InitLogging(const LogOptions& options) {
  const spdlog::level::level_enum level = spdlog::level::from_str(
      options.level == "warn" ? "warning" : options.level == "error" ? "err" : options.level);
  if (level == spdlog::level::off) {
    return InvalidArgument(
        fmt::format("log level \"{}\": one of debug, info, warn, error", options.level));
  }
  auto logger = std::make_shared<spdlog::logger>(
      options.process, std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %n %l: %v", spdlog::pattern_time_type::utc);
  logger->set_level(level);
  logger->flush_on(spdlog::level::debug);
  spdlog::set_default_logger(std::move(logger));
  return absl::OkStatus();
}

void NameThread(const std::string& name) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
}

}  // namespace sft::obs
