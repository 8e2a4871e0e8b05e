package aws

import (
	"regexp"
	"strings"
	"time"

	"lowtide/shared/provider"
)

// instance is one machine as EC2 shows it.
type instance struct {
	ID        string `xml:"instanceId"`
	Type      string `xml:"instanceType"`
	State     string `xml:"instanceState>name"`
	Placement struct {
		Zone   string `xml:"availabilityZone"`
		ZoneID string `xml:"availabilityZoneId"`
	} `xml:"placement"`
	Lifecycle   string    `xml:"instanceLifecycle"` // "spot", "capacity-block"; on demand says nothing
	Reservation string    `xml:"capacityReservationId"`
	SpotRequest string    `xml:"spotInstanceRequestId"`
	Launched    time.Time `xml:"launchTime"`
	Transition  string    `xml:"reason"`           // "User initiated (2026-01-01 00:00:00 GMT)"
	Reason      string    `xml:"stateReason>code"` // "Server.SpotInstanceTermination"
	Tags        []struct {
		Key   string `xml:"key"`
		Value string `xml:"value"`
	} `xml:"tagSet>item"`
}

func (i instance) tags() map[string]string {
	m := map[string]string{}
	for _, t := range i.Tags {
		m[t.Key] = t.Value
	}
	return m
}

func (i instance) state() (provider.State, string) {
	why := ""
	switch {
	case strings.HasPrefix(i.Reason, "Server.Spot"):
		why = "interrupted"
	case i.Reason == "Client.InstanceInitiatedShutdown":
		why = "self"
	case i.Reason != "":
		why = "asked"
	}
	switch i.State {
	case "pending":
		return provider.Pending, ""
	case "running":
		return provider.Running, ""
	case "shutting-down":
		return provider.Ending, why
	case "terminated":
		return provider.Gone, why
	}
	if why == "" || why == "asked" {
		why = "stopped"
	}
	return provider.Stopped, why
}

var transition = regexp.MustCompile(`\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (GMT|UTC)\)`)

// ended is when a machine went, as far as EC2 says; it never went later than now.
func (i instance) ended(now time.Time) time.Time {
	if m := transition.FindStringSubmatch(i.Transition); m != nil {
		if t, err := time.Parse(time.DateTime, m[1]); err == nil && t.Before(now) {
			return t
		}
	}
	return now
}

type instancesPage struct {
	Token        string `xml:"nextToken"`
	Reservations []struct {
		Instances []instance `xml:"instancesSet>item"`
	} `xml:"reservationSet>item"`
}

func (p *instancesPage) next() string { return p.Token }

// disk is one EBS disk that an image brings along.
type disk struct {
	Device string `xml:"deviceName"`
	EBS    *struct {
		Size int `xml:"volumeSize"`
	} `xml:"ebs"`
}

// machineType is what EC2 says of a type's GPUs.
type machineType struct {
	Name string `xml:"instanceType"`
	GPUs []struct {
		Name   string `xml:"name"`
		Count  int    `xml:"count"`
		Memory int    `xml:"memoryInfo>sizeInMiB"`
	} `xml:"gpuInfo>gpus>item"`
}

type typesPage struct {
	Token string        `xml:"nextToken"`
	Types []machineType `xml:"instanceTypeSet>item"`
}

func (p *typesPage) next() string { return p.Token }

type offeringsPage struct {
	Token     string `xml:"nextToken"`
	Offerings []struct {
		Type     string `xml:"instanceType"`
		Location string `xml:"location"`
	} `xml:"instanceTypeOfferingSet>item"`
}

func (p *offeringsPage) next() string { return p.Token }

type spotPage struct {
	Token  string `xml:"nextToken"`
	Prices []struct {
		Type   string    `xml:"instanceType"`
		Price  string    `xml:"spotPrice"`
		At     time.Time `xml:"timestamp"`
		Zone   string    `xml:"availabilityZone"`
		ZoneID string    `xml:"availabilityZoneId"`
	} `xml:"spotPriceHistorySet>item"`
}

func (p *spotPage) next() string { return p.Token }

type blocksPage struct {
	Token  string `xml:"nextToken"`
	Blocks []struct {
		Type     string `xml:"instanceType"`
		Zone     string `xml:"availabilityZone"`
		Count    int    `xml:"instanceCount"`
		Hours    int    `xml:"capacityBlockDurationHours"`
		Fee      string `xml:"upfrontFee"`
		Currency string `xml:"currencyCode"`
		Start    string `xml:"startDate"`
	} `xml:"capacityBlockOfferingSet>item"`
}

func (p *blocksPage) next() string { return p.Token }
