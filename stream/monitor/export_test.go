package monitor

// This file exports internals to the tests in package monitor_test.

import (
	"github.com/streamdp/streamdp/internal/kafka"
)

type (
	LagKey    = lagKey
	MetricDef = metricDef
)

const (
	LagLast        = lagLast
	MaxSchemaIDs   = maxSchemaIDs
	Prefix         = prefix
	SeriesNumbers  = seriesNumbers
	SeriesReleases = seriesReleases
)

var (
	MetricTable = metricTable
	Numbers     = numbers
)

func (x *LagReport) Take(a0 bool) []kafka.GroupOffset { return x.take(a0) }

func (x *Series) Points() *[]Point { return &x.points }
