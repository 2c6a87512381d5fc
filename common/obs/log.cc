#include "common/obs/log.h"

#include <fmt/format.h>
#include <pthread.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

#include "common/base/plain_text.h"

namespace sft::obs {
namespace {

// Formats the text of a line with escapes. It contains names, paths and messages of clients, nodes
// and files: none of them may begin a line of its own, or colour the terminal that shows it.
class EscapedText final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& line, const std::tm&,
              spdlog::memory_buf_t& out) override {
    const std::string text =
        Escaped({line.payload.data(), line.payload.size()}, /*keep_breaks=*/false);
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<spdlog::custom_flag_formatter> clone() const override {
    return std::make_unique<EscapedText>();
  }
};

}  // namespace

absl::Status InitLogging(const LogOptions& options) {
  const spdlog::level::level_enum level =
      spdlog::level::from_str(options.level == "warn"    ? "warning"
                              : options.level == "error" ? "err"
                                                         : options.level);
  if (level == spdlog::level::off) {
    return InvalidArgument(
        fmt::format("log level \"{}\": one of debug, info, warn, error", options.level));
  }
  auto logger = std::make_shared<spdlog::logger>(options.process,
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  auto lines = std::make_unique<spdlog::pattern_formatter>(spdlog::pattern_time_type::utc);
  lines->add_flag<EscapedText>('*').set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %n %l: %*");
  logger->set_formatter(std::move(lines));
  logger->set_level(level);
  logger->flush_on(spdlog::level::debug);
  spdlog::set_default_logger(std::move(logger));
  return absl::OkStatus();
}

void NameThread(const std::string& name) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
}

}  // namespace sft::obs
