// What the boards may hold in the oldest Grafana that they are for.
import type { Dashboard, FieldConfig } from "grafana-10/dist/esm/raw/dashboard/x/dashboard_types.gen";
import type { PrometheusDataQuery } from "grafana-10/dist/esm/raw/composable/prometheus/dataquery/x/PrometheusDataQuery_types.gen";
import type * as stat from "grafana-10/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen";
import type * as states from "grafana-10/dist/esm/raw/composable/statetimeline/panelcfg/x/StateTimelinePanelCfg_types.gen";
import type * as table from "grafana-10/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen";
import type * as timeseries from "grafana-10/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";

export interface Model {
  board: Dashboard;
  field: FieldConfig;
  target: PrometheusDataQuery;
  options: {
    stat: stat.Options;
    "state-timeline": states.Options;
    table: table.Options;
    timeseries: timeseries.Options;
  };
  custom: {
    "state-timeline": states.FieldConfig;
    table: table.FieldConfig;
    timeseries: timeseries.FieldConfig;
  };
}
