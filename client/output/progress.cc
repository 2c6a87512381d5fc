#include "client/output/progress.h"

#include <fmt/format.h>

#include <algorithm>

#include "client/output/format.h"
#include "client/output/json.h"
#include "client/output/text.h"

namespace sft::client {

double MarginOf(const v1::Preference& preference) {
  return preference.rewards_chosen() - preference.rewards_rejected();
}

std::string ValuesText(const google::protobuf::RepeatedPtrField<v1::NamedValue>& values,
                       size_t most) {
  std::string text;
  for (const v1::NamedValue& value : values) {
    const std::string next = fmt::format("  {} {:.2f}", value.name(), value.value());
    if (text.size() + next.size() > most) break;
    text += next;
  }
  return text;
}

// Margin and accuracy of a job that learns from preferences, shown behind its loss.
std::string PreferenceText(const v1::Preference& preference) {
  return fmt::format("  margin {:.4f}  accuracy {:.0f}%", MarginOf(preference),
                     100 * preference.rewards_accuracies());
}

namespace {

// "  comm 12%": the part of the step in which ranks waited for each other; empty where there is
// one.
std::string CommText(const google::protobuf::RepeatedPtrField<v1::AxisTraffic>& traffic) {
  return traffic.empty() ? "" : fmt::format("  comm {:.0f}%", 100 * ExposedShare(traffic));
}

}  // namespace

std::string TrafficText(const v1::Progress& progress) {
  std::string text;
  for (const v1::AxisTraffic& each : progress.traffic()) {
    text +=
        fmt::format("{}{} {:.1f}% of the step waited for, {:.3g} GB/s", text.empty() ? "" : "; ",
                    each.axis(), 100 * each.exposed_share(), each.gigabytes_per_second());
  }
  return text;
}

std::string ProgressLine(const v1::Progress& progress, v1::Job::Kind kind, int width) {
  const bool answers = CountsAnswers(kind);
  std::string tail = fmt::format(" {}/{}", progress.step(), progress.total_steps());
  if (answers) {
    tail += " answers";
  } else if (progress.step() > 0) {
    tail += fmt::format("  loss {:.4f}", progress.loss());
  }
  if (progress.has_preference()) tail += PreferenceText(progress.preference());
  if (progress.has_val_loss()) tail += fmt::format("  val {:.4f}", progress.val_loss());
  tail += fmt::format("  {} tok/s", Count(progress.tokens_per_second()));
  if (progress.mfu() > 0) tail += fmt::format("  MFU {:.1f}%", 100 * progress.mfu());
  if (progress.of_limit() > 0) tail += fmt::format("  {:.0f}% of limit", 100 * progress.of_limit());
  tail += CommText(progress.traffic());
  if (progress.gpu_memory_bytes() > 0) tail += "  " + Bytes(progress.gpu_memory_bytes());
  tail += "  eta " + Duration(progress.eta_seconds());
  const size_t used = tail.size() + 1, columns = static_cast<size_t>(std::max(width, 0));
  tail += ValuesText(progress.values(), columns > used ? columns - used : 0);
  const int room = std::min(width - static_cast<int>(tail.size()) - 3, 40);
  if (room < 5 || progress.total_steps() <= 0) return tail.substr(1, std::max(width - 1, 0));
  const double share =
      std::clamp(static_cast<double>(progress.step()) / progress.total_steps(), 0.0, 1.0);
  const int filled = static_cast<int>(share * room);
  std::string bar(room, ' ');
  std::fill_n(bar.begin(), filled, '=');
  if (filled < room) bar[filled] = '>';
  return "[" + bar + "]" + tail;
}

void ProgressView::PrintLine(const std::string& line) {
  if (drawn_) console_.err << "\r\033[K";
  drawn_ = false;
  console_.err << line << "\n" << std::flush;
}

void ProgressView::OnJob(const v1::Job& job) {
  const v1::Progress& progress = job.progress();
  total_steps_ = progress.total_steps();
  kind_ = job.kind();
  std::string line = fmt::format("{} {}", ShortName(job.name()), StateName(job.state()));
  // Why a job failed is said by what is printed of its verdict.
  const bool told = job.state() == v1::Job::FAILED && job.reason() == job.verdict().message();
  // Lists of rows are the verdict's.
  const std::string reason = job.reason().substr(0, job.reason().find('\n'));
  if (!reason.empty() && !told) line += ": " + reason;
  line = OneLine(line);
  if (line != last_state_line_) PrintLine(line);
  last_state_line_ = line;
  if (!console_.terminal || IsEnded(job.state())) return;
  if (job.state() == v1::Job::RUNNING && progress.step() > 0) {
    console_.err << "\r\033[K" << ProgressLine(progress, kind_, console_.width) << std::flush;
    drawn_ = true;
  } else if (job.state() == v1::Job::PREPARING && !progress.phase().empty()) {
    console_.err << "\r\033[K" << OneLine(progress.phase()) << std::flush;
    drawn_ = true;
  }
}

void ProgressView::OnMetric(const v1::Metric& metric) {
  if (console_.terminal) return;
  if (metric.is_eval()) {
    PrintLine(fmt::format("step {}  val.loss {:.4f}{}{}", metric.step(), metric.val_loss(),
                          metric.has_preference() ? PreferenceText(metric.preference()) : "",
                          ValuesText(metric.values())));
    return;
  }
  if (CountsAnswers(kind_)) {
    PrintLine(fmt::format("{}/{} answers  {} tok/s", metric.step(), metric.total_steps(),
                          Count(metric.tokens_per_second())));
    return;
  }
  std::string line =
      fmt::format("step {}/{}  loss {:.4f}{}  grad_norm {:.3f}  lr {:.2e}  {} tok/s", metric.step(),
                  metric.total_steps() > 0 ? metric.total_steps() : total_steps_, metric.loss(),
                  metric.has_preference() ? PreferenceText(metric.preference()) : "",
                  metric.grad_norm(), metric.lr(), Count(metric.tokens_per_second()));
  if (metric.mfu() > 0) line += fmt::format("  MFU {:.1f}%", 100 * metric.mfu());
  if (metric.of_limit() > 0) line += fmt::format("  {:.0f}% of limit", 100 * metric.of_limit());
  line += CommText(metric.traffic());
  if (metric.gpu_memory_bytes() > 0) line += "  " + Bytes(metric.gpu_memory_bytes());
  PrintLine(line);
}

void ProgressView::Finish() {
  if (drawn_) console_.err << "\n" << std::flush;
  drawn_ = false;
}

std::string RanksText(const v1::Progress& progress) {
  if (progress.ranks_size() < 2) return "";
  const auto [least, most] = std::minmax_element(
      progress.ranks().begin(), progress.ranks().end(),
      [](const auto& a, const auto& b) { return a.gpu_memory_bytes() < b.gpu_memory_bytes(); });
  return fmt::format("{} (rank {}) to {} (rank {}) of each of {} ranks",
                     Bytes(least->gpu_memory_bytes()), least->rank(),
                     Bytes(most->gpu_memory_bytes()), most->rank(), progress.ranks_size());
}

std::string OutlookText(const v1::Outlook& outlook) {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (outlook.place() > 0) add(fmt::format("place {} in line", outlook.place()));
  if (outlook.has_start_time()) add("start " + Utc(outlook.start_time()));
  if (outlook.has_promised_start_time()) {
    add(fmt::format("{} at the latest", Utc(outlook.promised_start_time())));
  }
  if (outlook.has_end_time()) {
    add(fmt::format("end {}{}", Utc(outlook.end_time()),
                    outlook.source() == "measured" ? " (measured)" : ""));
  }
  return text;
}

}  // namespace sft::client
